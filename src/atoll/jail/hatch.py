"""What a zygote's child does: moves into its jail, gives up everything, becomes a guest.

SECURITY: it holds rights over the nursery's user namespace until it is the guest's user, and runs
nothing but this file and its imports until the filter is in place.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` makes enums of all it returns
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from atoll.jail import packets, steps, syscalls
from atoll.jail.spec import WORK_FOLDER, Limits

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from types import ModuleType

PARTS = ("__main__", "clone", "state")
_run_guest: list[Callable[[int | None], NoReturn]] = []
"""What a child runs; it is told the memory limit."""
_held = {"memory": 0, "address_space": 0}
"""Bytes that every child is born with."""
_kept: set[int] = set()
"""Descriptors of the zygote's that its children need; high ones."""


def prepare(names: dict[str, ModuleType], role: str = "", settings: str = "") -> None:
    """In the zygote: load all that a guest needs, so that it is inherited; then hide it."""
    if role:
        module, _, function = role.partition(":")
        run, kept = getattr(importlib.import_module(module), function)(settings)
        _run_guest.append(lambda _memory: run())
        _kept.update(kept)
        return
    start, *_ = (importlib.import_module(f"atoll.guest.{part}") for part in PARTS)
    guest = start.Guest(WORK_FOLDER, names)
    guest.rehearse()
    _run_guest.append(lambda memory: guest.run(memory, _held["memory"]))


def measure() -> None:
    """In the zygote, when all is loaded: what every child is born with."""
    with open("/proc/self/statm", encoding="ascii") as file:
        size, resident, shared, *_ = map(int, file.read().split())
    page = os.sysconf("SC_PAGE_SIZE")
    _held.update(memory=(resident - shared) * page, address_space=size * page)


def jail(request: dict[str, Any], fds: list[int], init: int, uid: int | None) -> steps.Jail:
    """The jail that a child is to enter, whose pid 1 is `init`."""
    groups = fds[: request["groups"]]
    return steps.Jail(
        limits=Limits(**request["limits"]),
        binds=(),
        host_uid=uid,
        cgroup_fds=groups,
        counted=bool(groups),
        init=init,
        inherited=_held["address_space"],
    )


def become(
    request: dict[str, Any], fds: list[int], jail: steps.Jail, control: socket.socket
) -> NoReturn:
    """In the child. `fds`: control groups, then the guest's own.

    The zygote's socket is used once more: for the warden, which gets both processes to hold, and
    the filter's questions.
    """
    number, given = request["fork"], fds[request["groups"] :]
    try:
        pid = int(os.readlink("/proc/self"))  # as the nursery counts
        _reset_signals()
        held = [jail.init, os.pidfd_open(os.getpid())]
        own = _lower(given)
        # Before there is a limit of descriptors, which those of the zygote would count against.
        syscalls.close_all_but({*own, *_kept, *jail.descriptors(), *held, control.fileno()})
        steps.take(steps.FORKED, jail)
        held += [] if jail.listener is None else [jail.listener]
        packets.send_bytes(control, b'{"entered": %d, "pid": %d}' % (number, pid), held)
        syscalls.close_all_but({*own, *_kept})
        _freshen()
        _run_guest[0](jail.limits.memory)
    except steps.StepError as exc:
        packets.send(control, {"error": f"hatch: {exc}", "number": number})
    except BaseException as exc:  # noqa: BLE001 - nothing may unwind into the zygote's loop
        packets.send(control, {"error": f"hatch: {type(exc).__name__}: {exc}", "number": number})
    os._exit(1)


def _reset_signals() -> None:
    _signal.set_wakeup_fd(-1)
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    os.setsid()


def _lower(given: list[int]) -> list[int]:
    """The guest's descriptors as 0, 1, 2 and so on, which the zygote keeps free."""
    for number, fd in enumerate(given):
        os.dup2(fd, number)
    return list(range(len(given)))


def _freshen() -> None:
    """What every guest of a zygote would have in common, and must not."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "tempfile" in sys.modules:
        vars(sys.modules["tempfile"])["_name_sequence"] = None
