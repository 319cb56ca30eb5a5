"""Ids that cannot be guessed: a prefix that says what it is, and 21 characters."""

from __future__ import annotations

import secrets


def new_id(prefix: str) -> str:
    """Return `prefix_` and 126 random bits."""
    return f"{prefix}_{secrets.token_urlsafe(16)[:21]}"
