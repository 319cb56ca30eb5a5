"""Check arguments that a guest has sent; errors say what a model has to change."""

from __future__ import annotations

from typing import Any


def text(value: Any, name: str, most: int = 10_000) -> str:
    """Return a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a text that is not empty, not {_told(value)}")
    if len(value) > most:
        raise ValueError(f"{name} has {len(value):,} characters; the most is {most:,}")
    return value


def count(value: Any, name: str, most: int) -> int:
    """Return a number from 0 on; more than `most` is taken as `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} must be a number from 0 on, not {_told(value)}")
    return min(value, most)


def place(value: Any, length: int) -> int:
    """Return an offset; a negative one counts from the end."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"start must be a number, not {_told(value)}")
    return max(0, length + value) if value < 0 else min(value, length)


def _told(value: Any) -> str:
    return repr(value)[:50]
