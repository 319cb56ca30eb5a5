"""The downloader's process: sets limits and Landlock, or a root of its own, then executes pip.

SECURITY: pip parses what an index sends. Here it may write to its scratch folder only, read the
system, its interpreter and the files of its settings, and open connections; it has no capability.
With wheels only, it runs no code of a package. Where neither Landlock nor namespaces are available,
it does not run at all, unless ATOLL_UNCONFINED_PIP=1 allows it.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import signal
import stat
import sys
from pathlib import Path
from typing import NoReturn

from atoll.jail.walls import landlock, syscalls
from atoll.jail.walls.binds import NEW_ROOT, READ_ONLY
from atoll.jail.walls.root import DEVICES
from atoll.jail.walls.syscalls import ATTR_RDONLY, MS_BIND, MS_NODEV, MS_NOSUID, MS_PRIVATE, MS_REC

_SYSTEM = (
    "/usr:/bin:/sbin:/lib:/lib32:/lib64:/etc:/opt/homebrew:"
    "/run/systemd/resolve:/run/nscd:/proc/sys:/proc/cpuinfo"
)
_MAX_FILE = 8 << 30
_PR_SET_PDEATHSIG = 1
ALLOWED = "ATOLL_UNCONFINED_PIP"
UNCONFINED = "pip cannot be confined: this kernel has neither Landlock nor namespaces for us"


def main(facts: str) -> NoReturn:
    """Execute the command of `facts` (JSON): parent's pid, scratch, readable paths, command."""
    parent, scratch, readable, command = json.loads(facts)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before PR_SET_PDEATHSIG was set
        os._exit(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_FILE, _MAX_FILE))
    try:
        _confine(scratch, readable)
    except OSError as exc:
        if os.environ.get(ALLOWED) != "1":
            sys.exit(f"ERROR: {UNCONFINED} ({exc.strerror or exc})")
        if syscalls.supported():
            syscalls.drop_capabilities()
    os.chdir(scratch)
    try:
        os.execv(command[0], command)  # noqa: S606 - this is its job
    except OSError as exc:
        sys.exit(f"ERROR: {command[0]}: {exc.strerror}")


def _confine(scratch: str, readable: list[str]) -> None:
    """Give up all rights but those of a downloader; OSError if the kernel has no way to."""
    if not syscalls.supported():
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    devices = [f"/dev/{name}" for name in DEVICES]
    paths = [*_SYSTEM.split(":"), f"/proc/{os.getpid()}", *readable]
    reachable = [path for path in paths if _is_reachable(path)]
    if not landlock.restrict(reachable, [scratch], devices, no_tcp=False):
        _enter_own_root([path for path in reachable if not _is_proc(path)], scratch, devices)
    syscalls.drop_capabilities()


def _is_proc(path: str) -> bool:
    """Return whether a path is below /proc, which a root of its own does not have."""
    return path.startswith("/proc/")


def _is_reachable(path: str) -> bool:
    """Return whether a path exists: settings may name paths that do not."""
    try:
        os.close(os.open(path, os.O_PATH | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _enter_own_root(readable: list[str], scratch: str, devices: list[str]) -> None:
    """Enter a root that contains these paths only, for kernels without Landlock.

    They are read-only except for the scratch folder; the network is the host's. OSError if
    namespaces are not available.
    """
    _unshare()
    syscalls.mount(None, "/", None, MS_REC | MS_PRIVATE)
    ordered = sorted({*readable, *devices}, key=lambda path: path.count("/"))
    opened = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in [*ordered, scratch]]
    syscalls.mount("tmpfs", NEW_ROOT, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=4m")
    for path, fd in opened:
        _bind(path, fd)
        if path not in {*devices, scratch}:
            syscalls.set_mount_attributes(NEW_ROOT + path, READ_ONLY, recursive=True)
    syscalls.set_mount_attributes(NEW_ROOT, ATTR_RDONLY, recursive=False)
    os.chdir(NEW_ROOT)
    syscalls.pivot_root(".", ".")
    syscalls.detach(".")


def _unshare() -> None:
    uid, gid = os.getuid(), os.getgid()
    if uid == 0:
        syscalls.unshare(syscalls.CLONE_NEWNS)
        return
    syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
    maps = {"setgroups": "deny", "uid_map": f"{uid} {uid} 1", "gid_map": f"{gid} {gid} 1"}
    for name, text in maps.items():
        Path(f"/proc/self/{name}").write_text(text, encoding="ascii")


def _bind(path: str, fd: int) -> None:
    target = Path(NEW_ROOT + path)
    if not target.exists():  # otherwise its parent is already bound
        target.parent.mkdir(parents=True, exist_ok=True)
        target.mkdir() if stat.S_ISDIR(os.fstat(fd).st_mode) else target.touch()
    syscalls.mount(f"/proc/self/fd/{fd}", str(target), None, MS_BIND | MS_REC)
    os.close(fd)
