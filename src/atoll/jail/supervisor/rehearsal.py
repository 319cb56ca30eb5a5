"""Rehearses the steps of a forked guest in its zygote, without their system calls.

The interpreter specialises code that has run a few times. Specialised code reads fewer objects, so
a guest that runs it counts fewer references, and copies fewer of the pages that it shares with its
zygote. SECURITY: the zygote is privileged and single-threaded; every function by which a step could
change something does nothing meanwhile.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import contextlib
import os
import resource
from typing import TYPE_CHECKING, Any

from atoll.guest.core import private
from atoll.jail.walls import syscalls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TIMES = 32
"""More than the interpreter takes to specialise code."""
_EFFECTS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (os, (
        "chdir", "chroot", "close", "dup2", "fchdir", "open", "pidfd_open", "setgroups",
        "setresgid", "setresuid", "setsid", "write",
    )),
    (resource, ("setrlimit",)),
    (_signal, ("set_wakeup_fd", "signal")),
    (syscalls, (
        "_capset", "_mount", "_prctl", "_setns", "_syscall", "_syscall_of_numbers", "_unshare",
    )),
)  # fmt: skip
"""Every function of these modules that the steps change something with."""


def rehearse(work: Callable[[], object]) -> None:
    """Run `work` a few times; its system calls return 0 and have no effect."""
    with _without_effects():
        for _ in range(TIMES):
            work()


@contextlib.contextmanager
def _without_effects() -> Iterator[None]:
    modules = [(each, names) for one, names in _EFFECTS for each in (one, *private.copies_of(one))]
    places = [(vars(module), name) for module, names in modules for name in names]
    real = [names[name] for names, name in places]
    try:
        for names, name in places:
            names[name] = _do_nothing
        yield
    finally:
        for (names, name), function in zip(places, real, strict=True):
            names[name] = function


def _do_nothing(*_args: object, **_named: object) -> int:
    return 0
