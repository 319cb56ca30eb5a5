"""Searches for a pattern in bytes: for guests' files, contexts, archives and code units."""
