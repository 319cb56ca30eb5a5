"""The zygote: an interpreter with its libraries imported that forks guests on request.

Single-threaded, and no guest code ever runs in it. Heaps are collapsed into huge pages and
frozen before it serves, so that a fork copies little and a guest's collector touches none of it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any, NoReturn

from atoll.jail import hatch, packets, preload, seccomp, syscalls
from atoll.jail.nursery import CONTROL_FD, reap

_MADV_COLLAPSE = 25
_HUGE = 2 << 20
ROOM_A_LINE = 12 << 20
"""What one line of imports may take of the interpreter's heap; what is too much goes back."""
_ARENA, _BLOCK = 1 << 20, 512


def main(lines: str, role: str = "", settings: str = "") -> NoReturn:
    """Import what `lines` (a JSON list of import statements) say, then serve.

    Its children are guests, or what `role` (module:function) makes of them with `settings`.
    """
    started = time.monotonic()
    control = socket.socket(fileno=CONTROL_FD)
    wanted = json.loads(lines)
    stakes = _stake_out(len(wanted) * ROOM_A_LINE)
    names, missing = preload.load(wanted)
    hatch.prepare(names, role, settings)
    stakes.clear()
    seccomp.jail_program(clones=True)
    gc.collect()
    gc.freeze()
    collapsed = _collapse()
    ready = {
        "missing": missing,
        "seconds": round(time.monotonic() - started, 3),
        "threads": len(os.listdir("/proc/self/task")),
        "collapsed": collapsed,
    }
    packets.send(control, {"ready": ready})
    Zygote(control).serve()


class Zygote:
    """The loop: fork, report, reap."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._home = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._wake, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _ignore)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def serve(self) -> NoReturn:
        """Until the warden or the nursery is gone."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if self._wake in ready:
                os.read(self._wake, 4096)
                if ends := reap():
                    packets.send(self._control, {"reaped": ends})
            if self._control.fileno() in ready:
                self._hatch()

    def _hatch(self) -> None:
        try:
            data, fds = packets.receive(self._control)
        except BlockingIOError:
            return
        if not data:
            os._exit(0)
        request = json.loads(data)
        try:
            self._hand_over(request["hatch"], self._fork_into(fds[1], request, fds))
        except OSError as exc:
            self._refuse(fds[0], exc)
        for fd in fds:
            os.close(fd)

    def _hand_over(self, number: int, pid: int) -> None:
        """Let the warden hold the child; without a handle on it nobody could end it."""
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            raise
        try:
            packets.send(self._control, {"hatched": number, "pid": pid}, [pidfd])
        finally:
            os.close(pidfd)

    def _fork_into(self, namespace: int, request: dict[str, Any], fds: list[int]) -> int:
        """A child in the shell's pid namespace. ENOMEM if its pid 1 is gone: a cancelled start."""
        syscalls.join(namespace)
        try:
            pid = os.fork()
            if pid == 0:
                self._become_guest(request, fds)
        finally:
            with contextlib.suppress(OSError):  # before the next fork it is somewhere else again
                syscalls.join(self._home)
        return pid

    def _become_guest(self, request: dict[str, Any], fds: list[int]) -> NoReturn:
        """In the child. SECURITY: nothing may unwind into the loop of the zygote, its parent."""
        try:
            hatch.become(request, fds)
        finally:
            os._exit(1)

    def _refuse(self, status: int, reason: OSError) -> None:
        """Tell whoever asked, if it is still there; the next one may have more luck."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(status)) as end:
            packets.send(end, {"error": f"zygote: {reason}"})


def _stake_out(size: int) -> list[bytes]:
    """Make the heap's arenas before any library is mapped, so that they lie side by side.

    Scattered among libraries they are too small for huge pages. The blocks that are returned keep
    each from going back; freed later, they leave only what is in use.
    """
    blocks = [bytes(_BLOCK - sys.getsizeof(b"")) for _ in range(size // _BLOCK)]
    return blocks[:: _ARENA // _BLOCK // 2]


def _collapse() -> int:
    """Make huge pages of the private heaps, so that a fork copies fewer page tables; how many."""
    import ctypes  # noqa: PLC0415 - loaded by syscalls anyway

    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
        heaps = [span for line in maps if (span := _private_heap(line))]
    starts = (
        at
        for first, last in heaps
        for at in range(-(-first // _HUGE) * _HUGE, last - _HUGE + 1, _HUGE)
    )
    return sum(advise(at, _HUGE, _MADV_COLLAPSE) == 0 for at in starts)


def _private_heap(line: str) -> tuple[int, int] | None:
    span, mode, _offset, _device, _inode, *name = line.split(None, 5)
    if mode != "rw-p" or name not in ([], ["[heap]\n"]):
        return None
    first, _, last = span.partition("-")
    return int(first, 16), int(last, 16)


def _ignore(*_args: object) -> None:
    """SIGCHLD has to be handled to reach the wake-up pipe."""


if __name__ == "__main__":
    main(*sys.argv[1:])
