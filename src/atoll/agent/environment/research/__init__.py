"""The tree of a run's looks: nodes, references, and the text shown to the model."""
