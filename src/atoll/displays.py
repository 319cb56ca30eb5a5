"""A guest's displays as the host takes them: kind, size and number checked, none looked into."""

from __future__ import annotations

import base64
from typing import Any

from atoll.guest.display import MAX_BYTES, MAX_DISPLAYS, MAX_TOTAL_BYTES, MEDIA_TYPES
from atoll.types import Display


def read(rows: Any) -> tuple[Display, ...]:
    """The displays of an answer; ValueError or TypeError for what the runtime never sends."""
    if not isinstance(rows, list) or len(rows) > MAX_DISPLAYS:
        raise ValueError("not a list of displays")
    shown = tuple(_read_one(*row) for row in rows)
    if sum(len(one.data) for one in shown) > MAX_TOTAL_BYTES:
        raise ValueError("displays over the cap")
    return shown


def _read_one(media_type: str, encoded: str) -> Display:
    if media_type not in MEDIA_TYPES:
        raise ValueError("a display of no known kind")
    data = base64.b64decode(encoded, validate=True)
    if len(data) > MAX_BYTES:
        raise ValueError("a display over the cap")
    return Display(media_type=media_type, data=data)
