"""System calls that Python does not wrap, by ctypes. Raises OSError, decides nothing."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
import signal
import struct
import sys

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
_CLONE_VM, _CLONE_FILES, _CLONE_PARENT, _CLONE_INTO_CGROUP = 0x100, 0x400, 0x8000, 1 << 33

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2

ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_NOEXEC = 1, 2, 4, 8
ATTR_IDMAP = 0x00100000

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP = 1, 4, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 36, 38, 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

ARCH = os.uname().machine
_CLONE = {"x86_64": 56, "aarch64": 220}
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_OPEN_TREE, _MOVE_MOUNT, _CLONE3, _CLOSE_RANGE, _MOUNT_SETATTR = 428, 429, 435, 436, 442
_OPENAT2, _NO_SYMLINKS, _IN_ROOT = 437, 0x04, 0x10
"""Alike everywhere, as are those of Landlock."""
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446

_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH, _MOVE_MOUNT_T_SYMLINKS = 4, 0x10
_PIDFD_GET_INFO, _PIDFD_INFO_EXIT = 0xC040FF0B, 1 << 3
_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_NEW_LISTENER = 8
_CAPABILITY_VERSION_3 = 0x20080522
_LAST_CAPABILITY = 63
_ATTR_SIZE = ctypes.c_size_t(32)
_CAPABILITY_HEADER = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_syscall_of_numbers = _libc["syscall"]  # without an object for each argument: see close_all_but
_syscall_of_numbers.argtypes, _syscall_of_numbers.restype = (ctypes.c_long,) * 4, ctypes.c_long
_libc.prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)
_unshare, _setns, _capset, _mount = _libc.unshare, _libc.setns, _libc.capset, _libc.mount
_prctl = _libc.prctl  # not looked up at each call, which is slow
_mount.argtypes = (*(ctypes.c_char_p,) * 3, ctypes.c_ulong, ctypes.c_char_p)
_fork_call = ctypes.PyDLL(None, use_errno=True).syscall  # keeps the interpreter's lock, as a fork
_fork_call.argtypes, _fork_call.restype = (ctypes.c_long,) * 6, ctypes.c_long
_sleepers_stack = ctypes.create_string_buffer(1 << 14)


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


GUEST_ENDS, ZYGOTE_ENDS = 1000, 500
"""When memory runs out, guests are ended first. To end a zygote frees little: guests share it."""


def supported() -> bool:
    """Whether the numbers of this machine's system calls are known."""
    return ARCH in _PIVOT_ROOT


def unshare(flags: int) -> None:
    """Move this process into new namespaces."""
    _check(_unshare(flags), "unshare")


def fork(namespaces: int = 0, group: int | None = None) -> int:
    """Fork as os.fork() does, with the child in new `namespaces`; only in a process of one thread.

    A child in a new pid namespace is its pid 1. To unshare that takes a second fork. `group` is the
    folder of a control group of version 2 that the child is to be in.
    """
    flags = namespaces | _CLONE_INTO_CGROUP
    fields = struct.pack("11Q", flags, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, group or 0)
    room = ctypes.create_string_buffer(fields, len(fields))
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    if group is None:
        pid = _fork_call(_CLONE[ARCH], namespaces | signal.SIGCHLD, 0, 0, 0, 0)
    else:
        pid = _fork_call(_CLONE3, ctypes.addressof(room), len(fields), 0, 0, 0)
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    return _check(pid, "clone")


def fork_sibling() -> int:
    """Fork a child of this process's parent, which then can wait for it."""
    return fork(_CLONE_PARENT)


def join(namespace_fd: int, kinds: int = 0) -> None:
    """Move this process into a namespace, given by its file.

    `kinds`: CLONE_NEW* flags, if `namespace_fd` is a pidfd: join these namespaces of that process.
    """
    _check(_setns(namespace_fd, kinds), "setns")


def start_sleeper(namespaces: int) -> int:
    """Start a child that sleeps in the C library's pause() until it is killed; return its pid.

    It is pid 1 of the new `namespaces`, and costs a tenth of a fork: it uses this process's memory
    and descriptors and runs no code of ours. All sleepers can have one stack, since none returns.
    SIGCHLD has to be ignored while this is called, so that the kernel reaps the orphans that
    a sleeper gets. No other signal may have a handler: it would run in this process's memory.
    """
    top = (ctypes.addressof(_sleepers_stack) + len(_sleepers_stack)) & ~15
    flags = _CLONE_VM | _CLONE_FILES | namespaces | signal.SIGCHLD
    return _check(_libc.clone(_libc.pause, ctypes.c_void_p(top), flags, None), "clone")


def prefer_to_end(score: int) -> None:
    """Have the kernel end this process, and those forked off it, when memory runs out.

    The higher the `score` (1,000 at most; the host has 0), the sooner. SECURITY: a guest could
    lower it only where we are not root, or to that of its zygote.
    """
    try:  # noqa: SIM105 - for `suppress` a forked guest would copy eight pages
        write_file("/proc/self/oom_score_adj", b"%d" % score)
    except OSError:
        pass


def write_file(path: str, data: bytes) -> None:
    """Write one of the kernel's files."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def exit_status(pidfd: int) -> int | None:
    """Return the wait status of a process that was reaped by any parent; None if unknown.

    The kernel keeps it for holders of a pidfd from Linux 6.15 on.
    """
    room = bytearray(struct.pack("=Q56x", _PIDFD_INFO_EXIT))
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, room)
    except OSError:
        return None
    mask, status = struct.unpack("=Q52xi", room)
    return int(status) if mask & _PIDFD_INFO_EXIT else None


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """Mount something on `target`."""
    result = _mount(_path(source), _path(target), _path(kind), flags, _path(data or None))
    if result < 0:
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


def clone_tree(path: str, *, recursive: bool = False) -> int:
    """A detached copy of the mount at `path`; `recursive`: with all that is mounted below."""
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | (_AT_RECURSIVE if recursive else 0)
    return _call(_OPEN_TREE, _AT_FDCWD, _path(path), ctypes.c_uint(flags), what="open_tree")


def attach_tree(tree_fd: int, target: str) -> None:
    """Put a detached mount at `target`, which may be the link to a descriptor."""
    flags = ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_SYMLINKS)
    _call(_MOVE_MOUNT, tree_fd, b"", _AT_FDCWD, _path(target), flags, what="move_mount")


def open_place(path: str, folder: int | None = None, *, links: bool = False) -> int:
    """Open a path for its place; if its last name is a link, the link itself.

    OSError (ELOOP) if a link is on the way, unless `links`: those then lead nowhere but below the
    `folder`, as if that was the root.
    """
    resolve = _IN_ROOT if links else _NO_SYMLINKS
    how = struct.pack("QQQ", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, 0, resolve)
    at = _AT_FDCWD if folder is None else folder
    return _call(_OPENAT2, at, _path(path), how, ctypes.c_size_t(len(how)), what=f"open {path}")


def prctl(option: int, value: int = 0) -> None:
    """Set an option of this process."""
    _check(_prctl(option, value, 0, 0, 0), f"prctl {option}")


def drop_capabilities(dormant: int = 0) -> None:
    """Give up every capability, now and for whatever is executed later.

    The set `dormant` stays permitted to this very process, and is not in effect.
    """
    drop = _prctl
    for capability in range(_LAST_CAPABILITY + 1):
        if drop(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break  # past the last one that this kernel has
    drop(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    sets = (0).to_bytes(4, sys.byteorder) + dormant.to_bytes(4, sys.byteorder)
    _check(_capset(_CAPABILITY_HEADER, sets + bytes(16)), "capset")


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
    mode, flags = _SECCOMP_SET_MODE_FILTER, _SECCOMP_NEW_LISTENER if listen else 0
    try:
        fd = _call(_SECCOMP[ARCH], mode, flags, _program_header(program), what="seccomp")
    except OSError as exc:
        if not listen or exc.errno != errno.EBUSY:
            raise
        return install_filter(program)
    return fd if listen else None


@functools.cache
def _program_header(program: bytes) -> object:
    """Return a pointer to the struct sock_fprog of a filter; a zygote makes it for its guests."""
    return ctypes.byref(_Program(len(program) // 8, program))


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
    # Not a ctypes buffer: each makes a new type, for which a forked guest copies thirty pages.
    data = struct.pack("QQQQ", attributes, 0, 0, namespace_fd)
    _call(_MOUNT_SETATTR, fd, _path(path), flags, data, _ATTR_SIZE, what=f"mount_setattr {path}")


def _close_range(first: int, last: int) -> None:
    _check(_syscall_of_numbers(_CLOSE_RANGE, first, last, 0), "close_range")


def _path(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)


def _call(number: int, *args: object, what: str) -> int:
    return _check(_syscall(ctypes.c_long(number), *args), what)


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result
