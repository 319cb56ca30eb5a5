"""Walls around a process that only computes: it keeps its memory and its descriptors, no more.

SECURITY: no call that takes a path, makes a socket or a process, or names another process; a thread
that it starts is behind the same walls. Hostile bytes that take such a process over can change its
answer, and nothing else.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from atoll.jail.walls import landlock, syscalls
from atoll.jail.walls.bpf import (
    ALLOW,
    ANY_BIT,
    RETURN,
    argument,
    assemble,
    need_bits,
    numbers,
    only_values,
    refuse,
    refuse_bits,
)

if TYPE_CHECKING:
    from atoll.jail.walls.bpf import Instruction

CALLS = tuple(
    name
    for row in (
        "read pread64 write writev close poll ppoll",
        "brk mmap mprotect mremap munmap madvise",
        "clone set_robust_list rseq futex sched_yield sched_getaffinity",
        "restart_syscall",
        "rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack kill tgkill",
        "clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time",
        "getpid gettid getcwd getrandom getrusage prlimit64 exit exit_group",
    )
    for name in row.split()
)
"""Not even lseek, ftruncate and fcntl: a file's place and length are the host's too."""
_EXECUTABLE, _SHARED = 0x4, 0x1
_CLONE_THREAD, _CLONE3 = 0x00010000, 435


def seclude() -> bool:
    """Raise the walls, for good; False where the kernel or the machine has none."""
    if not syscalls.supported():
        return False
    alone = _has_one_thread()
    try:
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        with suppress(OSError):  # a second wall, where there is one
            landlock.restrict([], [], [], no_tcp=True)
        syscalls.drop_capabilities()
        syscalls.install_filter(program())
    except OSError:
        return False
    return alone


def program() -> bytes:
    """The filter: no new code, no memory that others share, no process, no signal but to itself."""
    own = only_values(0, (os.getpid(),), errno.EPERM)
    rules = {
        "clone": need_bits(0, _CLONE_THREAD, errno.EPERM),
        "clone3": [(RETURN, 0, 0, refuse(errno.ENOSYS))],  # no filter sees its flags: clone instead
        "read": only_values(0, (0,), errno.EPERM),  # of a file it would move the host's place too
        "kill": own,
        "tgkill": own,
        "prlimit64": only_values(0, (0, os.getpid()), errno.EPERM),
        "mmap": _private_data(),
        "mprotect": refuse_bits(2, _EXECUTABLE, errno.EPERM),
    }
    known = numbers()
    allowed = {"clone3": _CLONE3} | {name: known[name] for name in CALLS if name in known}
    # a module that is looked for behind the walls is then missing, which Python knows to take
    return assemble(allowed, rules, otherwise=errno.EPERM)


def _has_one_thread() -> bool:
    """Walls are around a thread: another that a library has started would stay outside."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def _private_data() -> list[Instruction]:
    return [
        argument(2),
        (ANY_BIT, 2, 0, _EXECUTABLE),
        argument(3),
        (ANY_BIT, 0, 1, _SHARED),
        (RETURN, 0, 0, refuse(errno.EPERM)),
        (RETURN, 0, 0, ALLOW),
    ]
