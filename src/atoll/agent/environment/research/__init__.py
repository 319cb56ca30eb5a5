"""The tree of what a run has looked at: nodes, references, and the text shown to the model."""
