"""Recursive language models: a model that explores a context by code, and calls itself on parts."""
