"""Folders of the cache that only their user may read or write."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from atoll.errors import RetrievalError

if TYPE_CHECKING:
    from pathlib import Path

_ADVICE = "set ATOLL_CACHE to a folder of yours"


def private_folder(folder: Path) -> Path:
    """Return the folder, created if needed, with mode 0700; RetrievalError if it is another's."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.stat()
    except OSError as exc:
        raise RetrievalError(f"no folder for the index: {exc}: {_ADVICE}") from None
    if facts.st_uid != os.geteuid():
        raise RetrievalError(f"{folder} belongs to another user: {_ADVICE}")
    if facts.st_mode & 0o077:
        folder.chmod(0o700)
    return folder
