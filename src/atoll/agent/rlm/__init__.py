"""Recursive language models: a model explores a context by code, and calls itself on parts."""
