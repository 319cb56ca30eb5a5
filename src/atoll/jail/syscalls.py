"""System calls that Python does not wrap, by ctypes. Raises OSError, decides nothing."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2

ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_NOEXEC = 1, 2, 4, 8
ATTR_IDMAP = 0x00100000

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP = 1, 4, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 36, 38, 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

ARCH = platform.machine()
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_OPEN_TREE, _MOVE_MOUNT, _CLOSE_RANGE, _MOUNT_SETATTR = 428, 429, 436, 442  # alike everywhere
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446

_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 4
_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_NEW_LISTENER = 8
_CAPABILITY_VERSION_3 = 0x20080522
_LAST_CAPABILITY = 63

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_libc.prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def supported() -> bool:
    """Whether the numbers of this machine's system calls are known."""
    return ARCH in _PIVOT_ROOT


def unshare(flags: int) -> None:
    """Move this process into new namespaces."""
    _check(_libc.unshare(flags), "unshare")


def join(namespace_fd: int) -> None:
    """Move this process into a namespace, given by its file."""
    _check(_libc.setns(namespace_fd, 0), "setns")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """Mount something on `target`."""
    result = _libc.mount(
        _path(source), _path(target), _path(kind), ctypes.c_ulong(flags), _path(data or None)
    )
    _check(result, f"mount {kind or source} on {target}")


def detach(target: str) -> None:
    """Unmount `target` lazily."""
    _check(_libc.umount2(_path(target), MNT_DETACH), f"umount {target}")


def pivot_root(new_root: str, old_root: str) -> None:
    """Make `new_root` the root, and put the old one at `old_root`."""
    _call(_PIVOT_ROOT[ARCH], _path(new_root), _path(old_root), what="pivot_root")


def set_mount_attributes(path: str, attributes: int, *, recursive: bool) -> None:
    """Set attributes of the mount at `path`."""
    _mount_setattr(_AT_FDCWD, path, _AT_RECURSIVE if recursive else 0, attributes, 0)


def map_mount_ids(tree_fd: int, user_namespace_fd: int) -> None:
    """Make a detached mount translate owners as `user_namespace_fd` maps them."""
    _mount_setattr(tree_fd, "", _AT_EMPTY_PATH, ATTR_IDMAP, user_namespace_fd)


def clone_tree(path: str) -> int:
    """A detached copy of the mount at `path`."""
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC
    return _call(_OPEN_TREE, _AT_FDCWD, _path(path), ctypes.c_uint(flags), what="open_tree")


def attach_tree(tree_fd: int, target: str) -> None:
    """Put a detached mount at `target`."""
    flags = ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH)
    _call(_MOVE_MOUNT, tree_fd, b"", _AT_FDCWD, _path(target), flags, what="move_mount")


def prctl(option: int, value: int = 0) -> None:
    """Set an option of this process."""
    _check(_libc.prctl(option, value, 0, 0, 0), f"prctl {option}")


def drop_capabilities(dormant: int = 0) -> None:
    """Give up every capability, now and for whatever is executed later.

    The set `dormant` stays permitted to this very process, and is not in effect.
    """
    for capability in range(_LAST_CAPABILITY + 1):
        if _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break  # past the last one that this kernel has
    _libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = ctypes.create_string_buffer(struct.pack("Ii", _CAPABILITY_VERSION_3, 0))
    sets = struct.pack("6I", 0, dormant, 0, 0, 0, 0)
    _check(_libc.capset(header, ctypes.create_string_buffer(sets, 24)), "capset")


def close_all_but(keep: set[int]) -> None:
    """Close every descriptor that is not in `keep`."""
    start = 0
    for fd in sorted(keep):
        if fd > start:
            _close_range(start, fd - 1)
        start = fd + 1
    _close_range(start, 0xFFFFFFFF)


def install_filter(program: bytes, *, listen: bool = False) -> int | None:
    """Install a seccomp filter (an array of struct sock_filter).

    With `listen`: the descriptor on which its questions come, or None if an outer filter has one.
    """
    buffer = ctypes.create_string_buffer(program, len(program))
    header = _Program(len(program) // 8, ctypes.addressof(buffer))
    mode, flags = _SECCOMP_SET_MODE_FILTER, _SECCOMP_NEW_LISTENER if listen else 0
    try:
        fd = _call(_SECCOMP[ARCH], mode, flags, ctypes.byref(header), what="seccomp")
    except OSError as exc:
        if not listen or exc.errno != errno.EBUSY:
            raise
        return install_filter(program)
    return fd if listen else None


def landlock_version() -> int:
    """The kernel's Landlock ABI; 0 without Landlock."""
    try:
        return _call(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1, what="landlock")
    except OSError:
        return 0


def landlock_create(attributes: bytes) -> int:
    """A new Landlock rule set."""
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    return _call(_LANDLOCK_CREATE, buffer, ctypes.c_size_t(len(attributes)), 0, what="landlock")


def landlock_allow(ruleset: int, access: int, path_fd: int) -> None:
    """Allow `access` beneath the file that `path_fd` names."""
    rule = ctypes.create_string_buffer(struct.pack("=Qi", access, path_fd), 12)
    _call(_LANDLOCK_ADD, ruleset, 1, rule, 0, what="landlock_add_rule")


def landlock_restrict(ruleset: int) -> None:
    """Put this process and its descendants under the rule set."""
    _call(_LANDLOCK_RESTRICT, ruleset, 0, what="landlock_restrict_self")


def _mount_setattr(fd: int, path: str, flags: int, attributes: int, namespace_fd: int) -> None:
    data = ctypes.create_string_buffer(struct.pack("QQQQ", attributes, 0, 0, namespace_fd), 32)
    size = ctypes.c_size_t(32)
    _call(_MOUNT_SETATTR, fd, _path(path), flags, data, size, what=f"mount_setattr {path}")


def _close_range(first: int, last: int) -> None:
    _call(_CLOSE_RANGE, ctypes.c_uint(first), ctypes.c_uint(last), 0, what="close_range")


def _path(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)


def _call(number: int, *args: object, what: str) -> int:
    return _check(_syscall(ctypes.c_long(number), *args), what)


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result
