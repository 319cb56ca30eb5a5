"""Renames and deletes below descriptors of folders, which a guest may change at the same time.

SECURITY: no link is followed. A folder is entered by its name in a descriptor, with O_NOFOLLOW,
and everything in it is named in that descriptor.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import stat

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_NOREPLACE = 1
MOST_OPEN = 100
"""Folders that are open at one time while a tree is deleted."""
MOST_PIECES = 10_000
"""Most pieces that a deep tree is cut into; a guest that keeps adding folders gets an error."""
_libc = ctypes.CDLL(None, use_errno=True)


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
    needs more than MOST_OPEN descriptors.
    """
    pieces, done = [name], 0
    while pieces:
        done += 1
        if done > MOST_PIECES:
            raise OSError(errno.EBUSY, "it grows while it is deleted: stop what writes to it")
        piece = pieces.pop()
        folder = os.open(piece, _FOLDER, dir_fd=parent)
        try:
            _empty(folder, MOST_OPEN, parent, pieces)
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
    inner = os.open(name, _FOLDER, dir_fd=folder)
    try:
        _empty(inner, deeper - 1, parent, pieces)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=folder)
