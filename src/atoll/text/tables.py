"""Tables of names, written as text."""

from __future__ import annotations


def names_in(text: str) -> frozenset[str]:
    """Return the names in a text, which are separated by white space."""
    return frozenset(text.split())
