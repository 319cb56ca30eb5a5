"""Recursive language models: a model that looks into a huge context by writing code."""
