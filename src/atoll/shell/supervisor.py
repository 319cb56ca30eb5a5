"""Runs one command for LocalSandbox, and kills all its processes when the host closes the socket.

A separate program between host and bash, as a subreaper: it finds processes that have left their
parents, group and session, and it ends everything even if the host is killed. Stdin is a socket to
the host: the supervisor writes lines to it, and EOF means that the host has gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_HOST = 0
_ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER
_PAUSE = 0.002


def main() -> None:
    """Run the command that is the one argument."""
    children = _wakeups()
    if ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0):
        _tell("error this kernel cannot keep orphans together")
        return
    try:
        bash = _start(sys.argv[1])
    except OSError as exc:
        _tell(f"error bash cannot be started: {exc.strerror}")
        return
    while _reap(bash):
        ready, _, _ = select.select([_HOST, children], [], [])
        if _HOST in ready:
            _end_all()
            return
        os.read(children, 4096)


def _wakeups() -> int:
    """Return a descriptor that is readable when a child has ended."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return read


def _start(command: str) -> int:
    """Start bash in its own process group, in this session; only bash has the output pipes."""
    bash = os.posix_spawnp(
        "bash",
        ["bash", "-c", command],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setpgroup=0,
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
    )
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    return bash


def _reap(bash: int) -> bool:
    """Reap ended children, report the end of bash, and return whether children are left."""
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return True
            if pid == bash:
                code = os.waitstatus_to_exitcode(status)
                _tell(f"exit {code if code >= 0 else 128 - code}")
    except ChildProcessError:
        return False


def _end_all() -> None:
    """Kill all descendants, until there are none."""
    while True:
        for pid in _descendants():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not _reap(-1):
            return
        time.sleep(_PAUSE)


def _descendants() -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, parent, _ in processes():
        children.setdefault(parent, []).append(pid)
    pids: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        more = children.get(waiting.pop(), [])
        pids += more
        waiting += more
    return pids


def processes() -> Iterator[tuple[int, int, int]]:
    """Yield every process with its parent and its session."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                _, parent, _, session = file.read().rpartition(b")")[2].split()[:4]
                yield int(name), int(parent), int(session)


def _tell(line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(_HOST, line.encode() + b"\n")


if __name__ == "__main__":
    main()
