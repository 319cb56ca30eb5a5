"""Folders of a guest, used by the host through descriptors: the boundary between the two.

SECURITY: nothing outside the descriptors is reached: the kernel refuses links that lead out
(openat2). Only regular files are read, which is checked after they are opened: a FIFO does not
block, and a device is not read. A file is written under another name and renamed, so a link in its
place is replaced, not followed. Moves and deletes name an entry of the parent's descriptor, so they
act on a link itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.files.changes import remove_tree, rename
from atoll.files.openat2 import open_beneath
from atoll.files.owner import acting_as_owner
from atoll.guest.shared.local_files import MOST_FOLDERS_DEEP, check_name, fill, locate
from atoll.guest.shared.texts import too_large

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK
_INNER_FOLDER = _FOLDER | os.O_NOFOLLOW | os.O_CLOEXEC
_INNER_FILE = _READ | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_MODE, FOLDER_MODE = 0o644, 0o755


class OpenFolders:
    """Files below descriptors of folders, each with a name; the first is the working folder.

    The caller closes the descriptors after the last use.
    """

    def __init__(self, folders: Mapping[str, int], max_file_bytes: int | None = None) -> None:
        self._folders = dict(folders)
        self._names = tuple(folders)
        self._max_file_bytes = max_file_bytes

    @contextlib.contextmanager
    def as_owner(self, path: str) -> Iterator[None]:
        """Act in this thread as the user who owns the folder that a path is in."""
        try:
            root = self._folders[locate(path, self._names)[0]]
        except ValueError:  # the operation on the path reports it
            root = self._folders[self._names[0]]
        with acting_as_owner(root):
            yield

    def open(self, path: str) -> int:
        """Return a descriptor for reading; links are followed while they stay inside."""
        return self._open(path, _READ)

    def is_link(self, path: str) -> bool:
        """Return whether the path itself is a link."""
        with _closing(self._open(path, os.O_PATH | os.O_NOFOLLOW)) as fd:
            return stat.S_ISLNK(os.fstat(fd).st_mode)

    def entries(self, path: str) -> list[tuple[str, os.stat_result]]:
        """Return the entries of a folder; links are not followed."""
        with _closing(self._open(path, _FOLDER)) as fd:
            return _entries(fd)

    def walk(self, path: str) -> Iterator[Found]:
        """Yield the files and folders below a folder; for a file, the file itself."""
        with _closing(self._open(path, _READ)) as fd:
            info = os.fstat(fd)
            if stat.S_ISDIR(info.st_mode):
                yield from _below(fd, "", MOST_FOLDERS_DEEP)
            else:
                yield Found(os.path.basename(path), info, "", fd)

    def store(self, path: str, data: bytes, *, fresh: bool) -> None:
        """Write a file, and make its parent folders."""
        if self._max_file_bytes is not None and len(data) > self._max_file_bytes:
            text = too_large("has", len(data), self._max_file_bytes)
            raise OSError(errno.EFBIG, f"{text}, as policy.file_size_bytes says")
        root, inner = locate(path, self._names)
        parents, _, name = inner.rstrip("/").rpartition("/")
        if name in ("", ".", "..") or inner.endswith("/"):
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        with _closing(_make_folders(self._folders[root], parents)) as parent:
            _put(parent, name, data, fresh=fresh)

    def stat(self, path: str) -> os.stat_result:
        """Return what is known of a file, folder or link; a link is not followed."""
        with _closing(self._open(path.rstrip("/") or "/", os.O_PATH | os.O_NOFOLLOW)) as fd:
            return os.fstat(fd)

    def delete(self, path: str, *, recursive: bool) -> None:
        """Delete a file or link, or a folder with all it holds if `recursive`."""
        root, parents, name = self._named(path)
        with _closing(open_beneath(root, parents or ".", _FOLDER)) as parent:
            info = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if not stat.S_ISDIR(info.st_mode):
                os.unlink(name, dir_fd=parent)
            elif recursive:
                remove_tree(parent, name)
            else:
                raise IsADirectoryError(errno.EISDIR, "it is a folder")

    def move(self, path: str, target: str, *, overwrite: bool) -> None:
        """Rename a file, folder or link, and make the target's parent folders."""
        root, parents, name = self._named(path)
        new_root, new_parents, new_name = self._named(target)
        with _closing(open_beneath(root, parents or ".", _FOLDER)) as old:
            os.stat(name, dir_fd=old, follow_symlinks=False)  # before folders are made for it
            with _closing(_make_folders(new_root, new_parents)) as new:
                rename(old, name, new, new_name, overwrite=overwrite)

    def mkdir(self, path: str) -> None:
        """Make a folder and its parents; an existing folder is no error."""
        root, inner = locate(path, self._names)
        try:
            os.close(_make_folders(self._folders[root], inner.rstrip("/")))
        except NotADirectoryError:
            raise FileExistsError(errno.EEXIST, "a file is in the way") from None

    def _named(self, path: str) -> tuple[int, str, str]:
        """Return the root's descriptor, the way to the parent folder, and the name in it."""
        root, inner = locate(path, self._names)
        check_name(inner)
        parents, _, name = inner.rstrip("/").rpartition("/")
        return self._folders[root], parents, name

    def _open(self, path: str, flags: int) -> int:
        root, inner = locate(path, self._names)
        return open_beneath(self._folders[root], inner, flags)


@dataclass(slots=True)
class Found:
    """An entry that a walk yields; it has to be opened before the walk continues."""

    path: str
    info: os.stat_result
    name: str
    folder: int
    too_deep: bool = False

    def open(self) -> int:
        """Return a descriptor for reading."""
        if not self.name:
            return os.dup(self.folder)  # the walk began with it
        return os.open(self.name, _INNER_FILE, dir_fd=self.folder)


def _below(folder: int, prefix: str, deeper: int) -> Iterator[Found]:
    """Yield the entries below a folder, depth first."""
    for name, info in sorted(_entries(folder), key=lambda entry: entry[0]):
        is_folder = stat.S_ISDIR(info.st_mode)
        yield Found(prefix + name, info, name, folder, is_folder and not deeper)
        if is_folder and deeper:
            with contextlib.suppress(OSError), _closing(_step(folder, name)) as inner:
                yield from _below(inner, f"{prefix}{name}/", deeper - 1)


def _step(folder: int, name: str) -> int:
    return os.open(name, _INNER_FOLDER, dir_fd=folder)


def _entries(folder: int) -> list[tuple[str, os.stat_result]]:
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # it was deleted meanwhile
                found.append((entry.name, entry.stat(follow_symlinks=False)))
    return found


def _make_folders(root: int, path: str) -> int:
    """Return a descriptor of the folder at `path`, made if needed; it must be below the root."""
    here, way = os.dup(root), ""
    for name in path.split("/"):
        way = f"{way}/{name}" if way else name
        try:
            inner = open_beneath(root, way, _FOLDER) if way else os.dup(root)
        except FileNotFoundError:
            inner = _make_folder(here, name)
        finally:
            os.close(here)
        here = inner
    return here


def _make_folder(parent: int, name: str) -> int:
    if name == "..":  # the parent was moved meanwhile, and from there `..` may lead out
        raise FileNotFoundError(errno.ENOENT, "a parent folder was deleted")
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, FOLDER_MODE, dir_fd=parent)
    return os.open(name, _INNER_FOLDER, dir_fd=parent)


def _put(folder: int, name: str, data: bytes, *, fresh: bool) -> None:
    if fresh:
        _create(folder, name, FILE_MODE, data)
        return
    mode = _mode_to_keep(folder, name)
    draft = f".{secrets.token_hex(8)}.draft"
    _create(folder, draft, mode, data)
    try:
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(draft, dir_fd=folder)
        raise


def _create(folder: int, name: str, mode: int, data: bytes) -> None:
    """Create a file with all of the data, or none at all."""
    fd = os.open(name, _CREATE, mode, dir_fd=folder)
    try:
        fill(fd, data)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)
        raise


def _mode_to_keep(folder: int, name: str) -> int:
    try:
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return FILE_MODE
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    return stat.S_IMODE(info.st_mode) & 0o777 if stat.S_ISREG(info.st_mode) else FILE_MODE


@contextlib.contextmanager
def _closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)
