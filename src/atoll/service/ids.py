"""Ids that cannot be guessed: a prefix that says what it is, and 21 characters."""

from __future__ import annotations

import secrets

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz-"


def new_id(prefix: str) -> str:
    """Return `prefix_` and 126 random bits."""
    return f"{prefix}_{''.join(_ALPHABET[one & 63] for one in secrets.token_bytes(21))}"
