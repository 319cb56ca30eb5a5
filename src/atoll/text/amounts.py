"""Formats counts, sizes, times and foreign texts for people, the same way everywhere."""

from __future__ import annotations

from datetime import UTC, datetime

_AGES = ((172_800, 86_400, "d"), (7_200, 3_600, "h"), (120, 60, "min"), (0, 1, "s"))
"""Least seconds, seconds of the unit, unit."""
_JUST_NOW = 10


def counted(number: int, things: str) -> str:
    """Return a number with its noun, which is given in the plural: `1 call`, `2 calls`."""
    return f"{number:,} {things.removesuffix('s') if number == 1 else things}"


def size_text(size: int) -> str:
    """Return a number of bytes in megabytes or gigabytes."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def ago_text(seconds: float) -> str:
    """Return how long ago something was: `just now`, `119 s ago`, `2 min ago`, `3 d ago`."""
    if seconds < _JUST_NOW:
        return "just now"
    unit, name = next((unit, name) for least, unit, name in _AGES if seconds >= least)
    return f"{seconds // unit:.0f} {name} ago"


def iso_time(seconds: float) -> str:
    """Return RFC 3339; a guest may give a file any time, also one that no calendar has."""
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        moment = datetime.fromtimestamp(0, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def printable(text: str) -> str:
    """Return a line with `?` for control characters, which could steer a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
