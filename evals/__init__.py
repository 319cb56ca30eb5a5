"""A long-context evaluation: generated tasks with exact answers, for any model, with baselines."""
