"""Every file below a guest's folder, open and in order: what a search goes through.

SECURITY: each step is by name from the descriptor of the folder above and follows no link, so
nothing that is moved or swapped meanwhile leads out.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from atoll.guest.local_files import MOST_FOLDERS_DEEP

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
_OUR_FAULT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class Tree:
    """Files below what `top` is open on, or itself; each descriptor is the taker's to close."""

    def __init__(self, top: int, name: str, chosen: Callable[[str], bool]) -> None:
        """`top` stays the caller's to close; `name` is what it is called if it is a file."""
        self._top, self._name, self._chosen = top, name, chosen
        self.too_deep = False
        """Whether there was a folder that was not entered."""

    def __iter__(self) -> Generator[tuple[str, int]]:
        """Path and descriptor; whether it is a file at all must be asked when it is read."""
        if stat.S_ISDIR(os.fstat(self._top).st_mode):
            yield from self._below(self._top, "", MOST_FOLDERS_DEEP)
        elif self._chosen(self._name):
            yield self._name, os.dup(self._top)

    def _below(self, folder: int, prefix: str, deeper: int) -> Iterator[tuple[str, int]]:
        for name, is_folder in _entries(folder):
            path = prefix + name
            if not is_folder:
                fd = _opened(name, _FILE, folder) if self._chosen(path) else -1
                if fd >= 0:
                    yield path, fd
            elif not deeper:
                self.too_deep = True
            else:
                yield from self._inside(_opened(name, _FOLDER, folder), path, deeper - 1)

    def _inside(self, folder: int, path: str, deeper: int) -> Iterator[tuple[str, int]]:
        if folder < 0:
            return
        try:
            yield from self._below(folder, f"{path}/", deeper)
        finally:
            os.close(folder)


def _entries(folder: int) -> list[tuple[str, bool]]:
    """Files and folders in order, and which are folders; as told without looking at each."""
    try:
        with os.scandir(folder) as found:
            kinds = [(one.name, one.is_dir(follow_symlinks=False), one) for one in found]
    except OSError as exc:
        _raise_if_ours(exc)
        return []
    wanted = [(name, is_dir) for name, is_dir, one in kinds if is_dir or _is_file(one)]
    return sorted(wanted)


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file(follow_symlinks=False)
    except OSError:
        return False  # it has gone meanwhile


def _opened(name: str, flags: int, folder: int) -> int:
    """A descriptor, or -1 if it has gone, is not ours to read, or is a link by now."""
    try:
        return os.open(name, flags, dir_fd=folder)
    except OSError as exc:
        _raise_if_ours(exc)
        return -1


def _raise_if_ours(exc: OSError) -> None:
    """What the host lacks must not look like a file that is not there."""
    if exc.errno in _OUR_FAULT:
        raise exc
