"""A program that makes the n-th system call of a kind fail in a running process, by ptrace.

    python tracer.py PID CALLS NTH ACTION [SCOPE]

It prints `ready` once it traces the process, the kind of each call that it looks for, and `hit`
when the n-th was met. CALLS is one of the kinds below, or `any` but `memory`. ACTION is the name of an errno (the call is not made, and fails with it), of
a signal (sent to the process at that moment), `hold` (the process stands still until a line comes
on stdin) or `count` (nothing is done). SCOPE is `self`, or `children` for what the process forks
from now on. SIGTERM ends it: never in the middle of a call, which would then fail with ENOSYS.
Nothing in the product takes part in this: whoever may ptrace a process may do more.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import struct
import sys

SEIZE, INTERRUPT, SYSCALL, DETACH, POKE_USER = 0x4206, 0x4207, 24, 17, 6
SYSCALL_INFO, ENTRY = 0x420E, 1
SYSGOOD, FORK, VFORK, CLONE = 1, 2, 4, 8
ORIG_RAX, RAX = 15 * 8, 10 * 8
CLONE_CALL, THREAD = 56, 0x00010000
WAKING = (1, 44)
"""A single byte wakes an event loop, of a signal handler or of another thread: such a write to a
pipe or socket that is read does not fail, and Python would not tell if it did."""
WALL = 0x40000000
WAKEUPS = {signal.SIGCHLD, signal.SIGTERM}
"""A traced process has stopped, or the tracer is to end. Both stay blocked, and are waited for."""
CALLS = {
    "fork": (56, 57, 58, 435),  # clone, fork, vfork, clone3
    "namespace": (272, 308),  # unshare, setns
    "mount": (165, 166, 155, 429, 442),  # mount, umount2, pivot_root, move_mount, mount_setattr
    "open": (2, 257, 437, 434, 293),  # open, openat, openat2, pidfd_open, pipe2
    "write": (1, 20),  # write, writev
    "send": (44, 46),  # sendto, sendmsg
    "receive": (45, 47),  # recvfrom, recvmsg
    "mkdir": (83, 258),  # mkdir, mkdirat
    "memory": (9, 12, 25),  # mmap, brk, mremap
}
"""Kinds of calls, by their numbers on x86_64."""
_ptrace = ctypes.CDLL(None, use_errno=True).ptrace
_ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_ptrace.restype = ctypes.c_long


class Tracer:
    """The processes that are traced, and what is to happen to one of them."""

    def __init__(self, pid: int, calls: str, nth: int, action: str, scope: str) -> None:
        self._pid, self._left, self._action = pid, nth, action
        kinds = [kind for kind in CALLS if kind != "memory"] if calls == "any" else [calls]
        self._kinds = {number: kind for kind in kinds for number in CALLS[kind]}
        self._children = scope == "children"
        self._tasks: set[int] = set()
        options = SYSGOOD | (FORK | VFORK | CLONE if self._children else 0)
        for task in map(int, os.listdir(f"/proc/{pid}/task")):
            trace(SEIZE, task, 0, options)
            trace(INTERRUPT, task)
            self._tasks.add(task)
        say("ready")

    def serve(self) -> None:
        """Until the n-th call was met, nothing is left to trace, or SIGTERM has come."""
        while self._tasks:
            task, status = os.waitpid(-1, WALL | os.WNOHANG)
            if not task:
                if signal.sigwait(WAKEUPS) == signal.SIGTERM:
                    break
            elif self._on_stop(task, status):
                trace(DETACH, task)
                self._tasks.discard(task)
                break
        self._detach()

    def _on_stop(self, task: int, status: int) -> bool:
        """Let a task go on, or deal with its call; return whether that was the n-th one."""
        if not os.WIFSTOPPED(status):
            self._tasks.discard(task)
            return False
        self._tasks.add(task)
        number, event = os.WSTOPSIG(status), status >> 16
        if number == signal.SIGTRAP | 0x80:
            if self._met(task):
                return True
            number = 0
        elif event or number == signal.SIGTRAP:
            number = 0
        resume(task, number)
        return False

    def _detach(self) -> None:
        """Let all tasks go. Left in a stop that nobody waits for, one would get its number as a signal."""
        for task in self._tasks:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it has ended
                trace(INTERRUPT, task)
                _, status = os.waitpid(task, WALL)
                number = os.WSTOPSIG(status) if os.WIFSTOPPED(status) else 0
                is_signal = not status >> 16 and number & 0x7F != signal.SIGTRAP
                trace(DETACH, task, 0, number if is_signal else 0)

    def _met(self, task: int) -> bool:
        """Look at a call that is entered; whether it was the one, and is dealt with."""
        kind = self._entered(task)
        if kind is None:
            return False
        say(kind)
        self._left -= 1
        if self._left or self._action == "count":
            return False
        say("hit")
        self._act(task)
        return True

    def _entered(self, task: int) -> str | None:
        if (task == self._pid) == self._children:
            return None
        info = ctypes.create_string_buffer(88)
        trace(SYSCALL_INFO, task, len(info), ctypes.addressof(info))
        operation = info.raw[0]
        number, first, _, length = struct.unpack_from("=QQQQ", info.raw, 24)
        if operation != ENTRY or (number == CLONE_CALL and first & THREAD):
            return None
        if number in WAKING and length == 1:
            return None
        return self._kinds.get(number)

    def _act(self, task: int) -> None:
        if self._action.startswith("SIG"):
            os.kill(task, signal.Signals[self._action])
        elif self._action == "hold":
            sys.stdin.readline()
        else:
            self._fail(task, getattr(errno, self._action))

    def _fail(self, task: int, code: int) -> None:
        trace(POKE_USER, task, ORIG_RAX, -1)
        trace(SYSCALL, task)
        os.waitpid(task, WALL)
        trace(POKE_USER, task, RAX, -code)


def trace(request: int, task: int, address: int = 0, data: int = 0) -> None:
    if _ptrace(request, task, address, data) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"ptrace {request:#x} of {task}: {os.strerror(code)}")


def resume(task: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it was killed meanwhile
        trace(SYSCALL, task, 0, number)


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, WAKEUPS)
    wanted, calls, nth, action, *scope = sys.argv[1:]
    Tracer(int(wanted), calls, int(nth), action, *scope or ["self"]).serve()
