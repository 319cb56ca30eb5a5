"""The folders of a store: made for this user alone, and never another user's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_checked: set[Path] = set()
"""Folders that were made, or checked to be this user's."""


def refusal(folder: Path, inner: Iterable[str]) -> str:
    """Make a folder with these in it; return why it cannot be used, or an empty text."""
    if folder in _checked and folder.is_dir():
        return ""
    try:
        for path in (folder, *(folder / name for name in inner)):
            if not path.is_dir():
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = folder.stat().st_uid
    except OSError as exc:
        return f"{folder} cannot be used: {exc.strerror}"
    if owner != os.geteuid():
        return f"{folder} belongs to another user"
    _checked.add(folder)
    return ""
