"""Binds of host paths in the root of a jail that is being built at NEW_ROOT.

SECURITY: sources are opened first and bound by descriptor, so no path is resolved twice. What is
not writable is read-only, and all is without set-id bits and devices.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

from atoll.jail.walls import syscalls as sys
from atoll.jail.walls import users

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.jail.supervisor.spec import Bind

NEW_ROOT = "/tmp"
READ_ONLY = sys.ATTR_RDONLY | sys.ATTR_NOSUID | sys.ATTR_NODEV
REPLACED_AT_MOST = 5


def open_all(binds: list[Bind], mapped_owner: int | None = None) -> list[tuple[Bind, int]]:
    """Open the source of each bind; of the folder that NEW_ROOT will cover, make a copy."""
    return [
        (bind, _copy(bind, mapped_owner) if bind.source == NEW_ROOT else _open_source(bind))
        for bind in binds
    ]


def _copy(bind: Bind, mapped_owner: int | None) -> int:
    try:
        return users.owned_tree(bind.source, mapped_owner if _is_owned(bind) else None)
    except OSError:  # its file system cannot translate owners
        return sys.clone_tree(bind.source)


def _is_owned(bind: Bind) -> bool:
    return bind.writable or bind.owned


def _open_source(bind: Bind) -> int:
    if bind.exact:
        return sys.open_place(bind.source)
    return os.open(bind.source, os.O_PATH | os.O_CLOEXEC)


def bind_all(binds: list[tuple[Bind, int]], mapped_owner: int | None = None) -> None:
    """Bind open sources to their targets, in this order, and close them."""
    done: list[tuple[Bind, int]] = []
    for bind, fd in binds:
        inside = below_a_bind(bind.target, done)
        target = NEW_ROOT + bind.target
        if not (bind.exact and inside) and not os.path.exists(target):
            make_target(target, is_folder=stat.S_ISDIR(os.fstat(fd).st_mode))
        with _place(bind, links=not inside) as place:
            if bind.source == NEW_ROOT:
                sys.attach_tree(fd, place)
            elif not (_is_owned(bind) and mapped_owner and _bind_owned(fd, place, mapped_owner)):
                _bind(bind, fd, place)
        attributes = READ_ONLY & ~sys.ATTR_RDONLY if bind.writable else READ_ONLY
        with _place(bind, links=not inside) as place:  # once more: now it is the new mount
            sys.set_mount_attributes(place, attributes, recursive=True)
        os.close(fd)
        done.append((bind, fd))


@contextlib.contextmanager
def _place(bind: Bind, *, links: bool) -> Iterator[str]:
    """Return the path of a bind's target; by descriptor if no link may be on the way.

    SECURITY: in a folder that was bound before, another program may change links while we mount.
    """
    if not bind.exact:
        yield NEW_ROOT + bind.target
        return
    with contextlib.ExitStack() as stack:
        top = os.open(NEW_ROOT, os.O_PATH | os.O_CLOEXEC)
        stack.callback(os.close, top)
        fd = sys.open_place(bind.target[1:], top, links=links)
        stack.callback(os.close, fd)
        yield f"/proc/self/fd/{fd}"


def _bind_owned(fd: int, target: str, mapped_owner: int) -> bool:
    """Bind `fd` as the guest's own; return False if its file system cannot translate owners."""
    try:
        tree = users.owned_tree(f"/proc/self/fd/{fd}", mapped_owner)
    except OSError:
        return False
    sys.attach_tree(tree, target)
    os.close(tree)
    return True


def _bind(bind: Bind, fd: int, target: str) -> None:
    """Bind the open file `fd` to `target`; open the source again if it was replaced meanwhile.

    The kernel refuses to bind an unlinked file, and a package manager replaces /etc/ld.so.cache
    by renaming a new file over it.
    """
    for _ in range(REPLACED_AT_MOST):
        try:
            return sys.mount(f"/proc/self/fd/{fd}", target, None, sys.MS_BIND | sys.MS_REC)
        except FileNotFoundError:
            fresh = _open_source(bind)
            os.dup2(fresh, fd, inheritable=False)
            os.close(fresh)
    return sys.mount(f"/proc/self/fd/{fd}", target, None, sys.MS_BIND | sys.MS_REC)


def below_a_bind(path: str, binds: list[tuple[Bind, int]]) -> bool:
    """Return whether a path lies below the target of one of these."""
    return any(path.startswith(bind.target + "/") for bind, _ in binds)


def make_target(target: str, *, is_folder: bool) -> None:
    """Make an empty folder or file, and the folders above it."""
    if is_folder:
        os.makedirs(target)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        write_file(target)


def write_file(path: str, data: bytes = b"") -> None:
    """Write a small file."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    if data:
        os.write(fd, data)
    os.close(fd)
