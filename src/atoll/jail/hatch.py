"""What a zygote's child does: moves into its shell, gives up everything, becomes a guest.

SECURITY: it holds rights over the nursery's user namespace until it has joined the shell's own,
and runs nothing but this file and its imports until the filter is in place.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib
import os
import signal
import socket
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from atoll.jail import cgroup, landlock, packets, rlimits, seccomp, shell, syscalls
from atoll.jail.spec import GUEST_UID, WORK_FOLDER, Limits

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_FIRST_HIGH_FD = 512
PARTS = ("__main__", "clone", "state")
WAY_IN = len(shell.NAMESPACES) + 1
CLONING = (1 << 18) | (1 << 21)
"""CAP_SYS_CHROOT and CAP_SYS_ADMIN, over a user namespace that owns nothing but mount tables of its
clones. They lie dormant: only `capset` wakes them, and the filter asks the warden about that."""
_run_guest: list[Callable[[], NoReturn]] = []
_kept: set[int] = set()
"""Descriptors of the zygote's that its children need; high ones."""


def prepare(names: dict[str, ModuleType], role: str = "", settings: str = "") -> None:
    """In the zygote: load all that a guest needs, so that it is inherited; then hide it."""
    if role:
        module, _, function = role.partition(":")
        run, kept = getattr(importlib.import_module(module), function)(settings)
        _run_guest.append(run)
        _kept.update(kept)
        return
    start, *_ = (importlib.import_module(f"atoll.guest.{part}") for part in PARTS)
    _run_guest.append(functools.partial(start.main, WORK_FOLDER, names, start.hide_runtime()))


def become(request: dict[str, Any], fds: list[int]) -> NoReturn:
    """In the child. `fds`: the status socket, the shell, control groups, the guest's own."""
    status = socket.socket(fileno=fds[0])
    way_in, rest = fds[1 : 1 + WAY_IN], fds[1 + WAY_IN :]
    groups, given = rest[: request["groups"]], rest[request["groups"] :]
    try:
        _reset_signals()
        cgroup.admit(groups, 0)
        _enter(way_in)
        syscalls.close_all_but({*_lower(given), *_kept, status.fileno()})
        listener = _lock(Limits(**request["limits"]), counted=bool(groups))
        packets.send(status, {"entered": True}, listener)
        status.close()
        for fd in listener:
            os.close(fd)
        _freshen()
        _run_guest[0]()
    except BaseException as exc:  # noqa: BLE001 - nothing may unwind into the zygote's loop
        packets.send(status, {"error": f"hatch: {type(exc).__name__}: {exc}"})
    os._exit(1)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()


def _enter(way_in: list[int]) -> None:
    """Into the shell, as its user."""
    with contextlib.suppress(PermissionError):  # nobody but root has groups to give up
        os.setgroups([])
    shell.enter(way_in)
    os.chdir(WORK_FOLDER)
    os.setresgid(GUEST_UID, GUEST_UID, GUEST_UID)
    os.setresuid(GUEST_UID, GUEST_UID, GUEST_UID)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)


def _lock(limits: Limits, *, counted: bool) -> list[int]:
    """Give up everything; the descriptor of the filter's questions, if there is one.

    `counted`: a control group counts processes, for each clone apart; else all share one limit.
    """
    limits = replace(limits, processes=None) if counted else limits
    rlimits.apply(limits, jailed=True, inherited=_address_space())
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    landlock.restrict_scope()
    syscalls.drop_capabilities(dormant=CLONING)
    listener = syscalls.install_filter(seccomp.jail_program(clones=True), listen=True)
    return [] if listener is None else [listener]


def _address_space() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _lower(given: list[int]) -> list[int]:
    """The guest's descriptors as 0, 1, 2 and so on."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_HIGH_FD) for fd in given]
    for number, fd in enumerate(high):
        os.dup2(fd, number)
    return list(range(len(high)))


def _freshen() -> None:
    """What every guest of a zygote would have in common, and must not."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "tempfile" in sys.modules:
        vars(sys.modules["tempfile"])["_name_sequence"] = None
