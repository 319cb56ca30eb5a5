"""Landlock: a second wall around files, and around signals and sockets where the kernel can."""

from __future__ import annotations

import contextlib
import os
import stat
import struct

from atoll.jail.walls import syscalls

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEVICE = 1 << 14, 1 << 15
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_USE_DEVICE = _READ_FILE | _WRITE_FILE | _READ_DIR | _IOCTL_DEVICE
_ALL_BY_VERSION = {1: 13, 2: 14, 3: 15, 4: 15}  # number of file rights that a version knows
_TCP, _ABSTRACT_AND_SIGNALS = 3, 3


def restrict(readable: list[str], writable: list[str], devices: list[str], *, no_tcp: bool) -> bool:
    """Allow just this from now on; False where the kernel has no Landlock."""
    version = syscalls.landlock_version()
    if not version:
        return False
    handled = (1 << _ALL_BY_VERSION.get(version, 16)) - 1
    ruleset = syscalls.landlock_create(_attributes(version, handled, no_tcp=no_tcp))
    for paths, rights in ((readable, _READ), (writable, handled), (devices, _USE_DEVICE)):
        for path in paths:
            _allow(ruleset, path, rights & handled)
    syscalls.landlock_restrict(ruleset)
    os.close(ruleset)
    return True


def scope_rules() -> int | None:
    """Rules for `restrict_scope`, to be made in sight of the guest's root; None without Landlock.

    They allow all below that root: rules are about inodes and a live clone gets folders with new
    ones, so files are left to the mounts, where all is read-only but the private folders.
    """
    version = syscalls.landlock_version()
    if not version:
        return None
    handled = (1 << _ALL_BY_VERSION.get(version, 16)) - 1
    ruleset = syscalls.landlock_create(_attributes(version, handled, no_tcp=False))
    _allow(ruleset, "/", handled)
    return ruleset


def restrict_scope(ruleset: int | None) -> None:
    """Wherever files may be: no mounts, no signal and no abstract socket beyond this sandbox."""
    if ruleset is not None:
        syscalls.landlock_restrict(ruleset)


def _attributes(version: int, handled: int, *, no_tcp: bool) -> bytes:
    attributes = struct.pack("Q", handled)
    if version >= 4:
        attributes += struct.pack("Q", _TCP if no_tcp else 0)
    if version >= 6:
        attributes += struct.pack("Q", _ABSTRACT_AND_SIGNALS)
    return attributes


def _allow(ruleset: int, path: str, rights: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                rights &= _FILE_RIGHTS
            syscalls.landlock_allow(ruleset, rights, fd)
        finally:
            os.close(fd)
