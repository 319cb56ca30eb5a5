"""Folders of a guest, used by the host through descriptors: the boundary between the two.

SECURITY: nothing outside the descriptors is reached: the kernel refuses links that lead out
(openat2). Only regular files are read, which is checked after they are opened: a FIFO does not
block, and a device is not read. A file is written under another name and renamed, so a link in its
place is replaced, not followed. Moves and deletes name an entry of the parent's descriptor, so they
act on a link itself. A folder is entered by its name in a descriptor, with O_NOFOLLOW, and
everything in it is named in that descriptor. A host that is root has the rights of a file's owner.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import posixpath
import secrets
import stat
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.guest.shared.local_files import MAX_FOLDERS_DEEP, check_name, fill, locate
from atoll.guest.shared.texts import too_large

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_OPENAT2 = 437
_NO_MAGICLINKS, _BENEATH = 0x02, 0x08
_RETRIES = 64
_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long
_SETGROUPS = {"x86_64": 116, "aarch64": 159}
_ASK = -1
"""An invalid id: setfsuid and setfsgid then change nothing and return the present id."""
_NOREPLACE = 1
MAX_OPEN = 100
"""Folders that are open at one time while a tree is deleted."""
MAX_LINKS = 10
"""Links that are followed one after another."""
MAX_PIECES = 10_000
"""Most pieces that a deep tree is cut into; a guest that keeps adding folders gets an error."""
_libc = ctypes.CDLL(None, use_errno=True)
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
                yield from _below(fd, "", MAX_FOLDERS_DEEP)
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
        """Return the status of a file, folder or link; a link is not followed."""
        with _closing(self._open(path.rstrip("/") or "/", os.O_PATH | os.O_NOFOLLOW)) as fd:
            return os.fstat(fd)

    def follow(self, path: str) -> tuple[str, int]:
        """Return where a link leads to and the mode of what is there; 0 if it cannot be reached.

        An absolute link means a path of the guest, so it is read here, and never by the kernel.
        """
        target, mode = "", 0
        with contextlib.suppress(OSError, ValueError):
            for _ in range(MAX_LINKS):
                with _closing(self._open(target or path, os.O_PATH | os.O_NOFOLLOW)) as fd:
                    found = os.fstat(fd).st_mode
                    if not stat.S_ISLNK(found):
                        mode = found
                        break
                    beside = posixpath.dirname(target or path)
                    target = posixpath.normpath(posixpath.join(beside, os.readlink("", dir_fd=fd)))
        return target, mode

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
        """Make a folder and its parents; an existing folder is not an error."""
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
    result = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # it was deleted meanwhile
                result.append((entry.name, entry.stat(follow_symlinks=False)))
    return result


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
    draft = f".{secrets.token_hex(8)}.{'draft' if mode is None else 'update'}"
    _create(folder, draft, FILE_MODE if mode is None else mode, data)
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


def _mode_to_keep(folder: int, name: str) -> int | None:
    """Return the mode of the file that is replaced; None if there is none."""
    try:
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    return stat.S_IMODE(info.st_mode) & 0o777 if stat.S_ISREG(info.st_mode) else FILE_MODE


@contextlib.contextmanager
def _closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def open_beneath(folder: int, path: str, flags: int, mode: int = 0) -> int:
    """Return a descriptor of `path` below the folder; links are followed while they stay inside.

    A path that leads out is EXDEV. EAGAIN (something was moved meanwhile) is retried.
    """
    how = struct.pack("QQQ", flags | os.O_CLOEXEC, mode, _BENEATH | _NO_MAGICLINKS)
    name = os.fsencode(path)
    for _ in range(_RETRIES):
        fd = _syscall(_OPENAT2, folder, name, how, ctypes.c_size_t(len(how)))
        if fd >= 0:
            return int(fd)
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(code, os.strerror(code), path)


@contextlib.contextmanager
def acting_as_owner(folder: int) -> Iterator[None]:
    """Use files as the folder's owner, in this thread alone; no change unless this is root.

    A file system that a zygote host mounted refuses files of users that are not in its namespace.
    """
    info = os.fstat(folder)
    if os.geteuid() != 0 or info.st_uid == 0:
        yield
        return
    group, user, groups = _libc.setfsgid(_ASK), _libc.setfsuid(_ASK), os.getgroups()
    try:
        _set_groups([])
        _libc.setfsgid(info.st_gid)
        _libc.setfsuid(info.st_uid)
        _check(info.st_uid, info.st_gid)
        yield
    finally:
        _libc.setfsuid(user)
        _libc.setfsgid(group)
        _set_groups(groups)


def _set_groups(groups: list[int]) -> None:
    """Set the groups of this thread alone; the C library's setgroups sets those of all threads."""
    array = (ctypes.c_uint32 * len(groups))(*groups)
    number = _SETGROUPS.get(platform.machine())
    if number is None or _libc.syscall(ctypes.c_long(number), len(groups), array):
        raise PermissionError(errno.EPERM, "cannot act as the owner of the working folder")


def _check(user: int, group: int) -> None:
    """Raise PermissionError if the kernel did not set these ids: setfsuid reports no error."""
    if (_libc.setfsuid(_ASK), _libc.setfsgid(_ASK)) != (user, group):
        raise PermissionError(errno.EPERM, "cannot act as the owner of the working folder")


def rename(old: int, name: str, new: int, new_name: str, *, overwrite: bool) -> None:
    """Rename an entry of one folder to an entry of another; FileExistsError unless `overwrite`."""
    try:
        if overwrite:
            os.rename(name, new_name, src_dir_fd=old, dst_dir_fd=new)
        else:
            _rename_fresh(old, name, new, new_name)
    except OSError as exc:
        if exc.errno == errno.EXDEV:
            text = "it cannot be moved to another file system: upload a copy, then delete it"
            raise OSError(errno.ENOTSUP, text) from None
        if exc.errno == errno.EINVAL:
            raise OSError(errno.EINVAL, "a folder cannot be moved into itself") from None
        raise


def _rename_fresh(old: int, name: str, new: int, new_name: str) -> None:
    """Rename with RENAME_NOREPLACE; on a file system without it, check for the target first."""
    names = os.fsencode(name), os.fsencode(new_name)
    if hasattr(_libc, "renameat2"):
        if _libc.renameat2(old, names[0], new, names[1], _NOREPLACE) == 0:
            return
        code = ctypes.get_errno()
        if code not in (errno.EINVAL, errno.ENOSYS):
            raise OSError(code, os.strerror(code))
    with contextlib.suppress(FileNotFoundError):
        os.stat(new_name, dir_fd=new, follow_symlinks=False)
        raise FileExistsError(errno.EEXIST, "it is there already")
    os.rename(name, new_name, src_dir_fd=old, dst_dir_fd=new)


def remove_tree(parent: int, name: str) -> None:
    """Delete a folder with all it holds.

    A folder that lies too deep is moved up to `parent` and deleted from there, so that no tree
    needs more than MAX_OPEN descriptors.
    """
    pieces, done = [name], 0
    while pieces:
        done += 1
        if done > MAX_PIECES:
            raise OSError(errno.EBUSY, "it grows while it is deleted: stop what writes to it")
        piece = pieces.pop()
        folder = os.open(piece, _INNER_FOLDER, dir_fd=parent)
        try:
            _empty(folder, MAX_OPEN, parent, pieces)
        finally:
            os.close(folder)
        os.rmdir(piece, dir_fd=parent)


def _empty(folder: int, deeper: int, parent: int, pieces: list[str]) -> None:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # the guest has deleted it meanwhile
            info = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISDIR(info.st_mode):
                os.unlink(name, dir_fd=folder)
            elif deeper:
                _remove_folder(folder, name, deeper, parent, pieces)
            else:
                moved = f".{secrets.token_hex(8)}.deleted"
                os.rename(name, moved, src_dir_fd=folder, dst_dir_fd=parent)
                pieces.append(moved)


def _remove_folder(folder: int, name: str, deeper: int, parent: int, pieces: list[str]) -> None:
    inner = os.open(name, _INNER_FOLDER, dir_fd=folder)
    try:
        _empty(inner, deeper - 1, parent, pieces)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=folder)
