"""Keeps texts in files of one session's folder, within a number of bytes.

SECURITY: other users of the machine may share the parent folder. The session's own folder is
created with mode 0700, or must belong to this user alone. Files are created through a descriptor of
it (O_EXCL), and no link is followed.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.concurrency import forks
from atoll.policy import check_positive

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK = 1 << 20
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class SpillStore:
    """Texts by name in `above/session_id`; without `above`, in a folder that close() removes.

    Beyond `max_bytes` the oldest are removed: a model asks about the newest.
    """

    def __init__(self, above: Path | None, session_id: str, max_bytes: int) -> None:
        check_positive("max_bytes", max_bytes)
        self._above, self._session, self._max_bytes = above, session_id, max_bytes
        self._sizes: dict[str, int] = {}
        self._lock = forks.new_lock()
        self._fd = -1
        self._path = Path()
        self._finalizer: weakref.finalize[..., SpillStore] | None = None
        self._closed = False

    def keep(self, name: str, text: str) -> Path:
        """Write a text, or replace the one of that name; OSError leaves no partial file."""
        with self._lock:  # a thread whose caller was cancelled may still be writing
            if self._closed:
                raise OSError("the session is closed")
            if self._fd < 0:
                self._open()
            self._forget(name)
            self._sizes[name] = self._write(name, text)
            while sum(self._sizes.values()) > self._max_bytes:
                self._forget(next(iter(self._sizes)))
            return self._path / name

    def paths(self) -> dict[str, Path]:
        """Return the paths of the texts by name, oldest first."""
        with self._lock:
            return {name: self._path / name for name in self._sizes}

    def clear(self) -> None:
        """Delete all texts."""
        with self._lock:
            for name in list(self._sizes):
                self._forget(name)

    def close(self) -> None:
        """Close the folder, and remove it if it was made for this session alone."""
        with self._lock:
            self._closed = True
            self._sizes.clear()
            if self._finalizer is not None:
                self._finalizer()

    def _open(self) -> None:
        private = self._above is None
        if self._above is None:
            self._path = Path(tempfile.mkdtemp(prefix="atoll-"))
        else:
            self._path = self._above / self._session
            self._above.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                self._path.mkdir(mode=0o700)
        self._fd = _own_folder(self._path)
        made = self._path if private else None
        self._finalizer = weakref.finalize(self, _let_go, self._fd, made)

    def _forget(self, name: str) -> None:
        self._sizes.pop(name, None)
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)

    def _write(self, name: str, text: str) -> int:
        fd = os.open(name, _NEW_FILE, 0o600, dir_fd=self._fd)
        try:
            return sum(_write_all(fd, data) for data in _encoded(text, self._max_bytes))
        except OSError:
            os.unlink(name, dir_fd=self._fd)
            raise
        finally:
            os.close(fd)


def _encoded(text: str, most: int) -> Iterator[bytes]:
    """Yield the text as UTF-8 in parts, so that it is not in memory twice; OSError over `most`."""
    size = 0
    for start in range(0, len(text), _CHUNK):
        # a lone surrogate has no UTF-8: it is written as \udxxx
        data = text[start : start + _CHUNK].encode("utf-8", "backslashreplace")
        size += len(data)
        if size > most:
            raise OSError(f"it has more than {most:,} bytes")
        yield data


def _own_folder(path: Path) -> int:
    """Return a descriptor of the folder; OSError if it is a link or other users can reach it."""
    fd = os.open(path, _FOLDER)
    found = os.fstat(fd)
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        os.close(fd)
        raise OSError(f"the folder {path.name} belongs to another user, or others may enter it")
    return fd


def _write_all(fd: int, data: bytes) -> int:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    return len(data)


def _let_go(fd: int, made: Path | None) -> None:
    os.close(fd)
    if made is not None:
        shutil.rmtree(made, ignore_errors=True)
