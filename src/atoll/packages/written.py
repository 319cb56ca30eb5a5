"""Reads files that a build or a downloader wrote.

SECURITY: what wrote them is hostile. A file is opened once, without following a link, and all that
follows is done with that descriptor: its name may mean another file a moment later.
"""

from __future__ import annotations

import hashlib
import os
import stat
from typing import TYPE_CHECKING

from atoll.errors import PackageError
from atoll.files.folder import open_beneath

if TYPE_CHECKING:
    from io import BufferedReader
    from pathlib import Path

CHUNK = 1 << 20
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_file(folder: Path, name: str) -> BufferedReader:
    """Open a file of the folder; PackageError if it is missing, or not a regular file."""
    try:
        place = os.open(folder, _FOLDER)
        try:
            fd = open_beneath(place, name, _READ)
        finally:
            os.close(place)
    except OSError as exc:
        raise PackageError("", f"{name[:200]!r} cannot be read: {exc.strerror}") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise PackageError("", f"{name[:200]!r} is not a file")
    return open(fd, "rb")


def digest(folder: Path, name: str) -> str:
    """Return the sha256 of a file of the folder."""
    with open_file(folder, name) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def copy(folder: Path, name: str, target: Path, most: int) -> str:
    """Copy a file of the folder to a new one and return its sha256; PackageError if too large."""
    result = hashlib.sha256()
    with open_file(folder, name) as source, target.open("xb") as made:
        while piece := source.read(CHUNK):
            most -= len(piece)
            if most < 0:
                raise PackageError("", f"{name[:200]!r} is too large")
            result.update(piece)
            made.write(piece)
    return result.hexdigest()
