"""Explores a large context by code: search, line numbers, quotes, and a record of what was seen."""
