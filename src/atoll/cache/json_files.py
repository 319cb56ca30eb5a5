"""JSON files of a store: written atomically, and parsed again only if they have changed."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.guest.shared.messages import Json

_MAX_PARSED = 256
_parsed: dict[Path, tuple[tuple[int, int, int], Json]] = {}
"""Parsed objects by file, with the file's version."""


def version_of(path: Path | str) -> tuple[int, int, int]:
    """Return size, times and inode of a file, which change with its content; OSError if missing."""
    facts = os.stat(path)
    return facts.st_ino, facts.st_mtime_ns, facts.st_size


def read_json(path: Path) -> Json | None:
    """Return the object in a file; None if it is missing or invalid. Do not change the object.

    It is cached while the file does not change, to keep warm starts fast.
    """
    try:
        identity = version_of(path)
        known = _parsed.get(path)
        if known is not None and known[0] == identity:
            return known[1]
        parsed = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(parsed, dict):
        return None
    if len(_parsed) >= _MAX_PARSED:
        _parsed.clear()
    _parsed[path] = identity, parsed
    return parsed


def write_json(path: Path, facts: Json) -> None:
    """Write an object atomically."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
