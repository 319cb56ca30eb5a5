"""What a zygote's child does: enters its jail, drops its privileges, becomes a guest.

SECURITY: the child has capabilities in the zygote host's user namespace until it switches to the
guest's user. It runs only this file and its imports until the seccomp filter is installed.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` makes enums of all it returns
import dataclasses
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from atoll.jail.supervisor import packets, rehearsal
from atoll.jail.supervisor.spec import NO_LIMITS, PACKAGES, WORK_FOLDER, Limits
from atoll.jail.walls import rlimits, steps, syscalls
from atoll.jail.zygote import after_fork

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from types import ModuleType

PARTS = ("__main__", "state.clone", "state.keeper")
_REHEARSED = {"memory": 1, "disk": 1, "file_size": 1}
_ENTERED = b'{"kind": "entered", "number": %d, "pid": %d}'
"""Not packets.send: the JSON encoder would copy pages of the zygote."""
_run_guest: list[Callable[[int | None], NoReturn]] = []
"""The function that a child runs, given its memory limit."""
_guests: list[Any] = []
"""The parts of a guest that all children share, unless they have another role."""
_with_packages: list[str] = []
"""The folder of packages by name, if there is one."""
_held = {"memory": 0, "address_space": 0}
"""Bytes that every child inherits from the zygote."""
_kept: set[int] = set()
"""Descriptors of the zygote, with high numbers, that its children need."""
_fresh: list[Callable[[], object]] = []
"""Functions that a child calls behind its walls, so that it differs from the others."""


def prepare(
    names: dict[str, ModuleType], hooks: after_fork.LibraryHooks, role: str = "", settings: str = ""
) -> None:
    """Load all that a guest needs in the zygote, so that its children inherit it."""
    _with_packages.extend({PACKAGES} & set(sys.path))
    _fresh.append(hooks.wake)
    if "random" in sys.modules:
        _fresh.append(after_fork.random_reseeder())
    if "numpy" in sys.modules:
        _fresh.append(after_fork.numpy_reseeder())
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
    _guests.append(guest)


def rehearse() -> None:
    """Become a guest without effect, so that a child finds the code of all this specialised."""
    request = {"limits": {**dataclasses.asdict(NO_LIMITS), **_REHEARSED}, "groups": 1, "number": 0}
    ours, theirs = packets.pair()

    def work() -> None:
        _start(request, [0, 0], jail(request, [0, 0], 0, 0), ours)
        theirs.recv(packets.SMALL)
        for guest in _guests:
            guest.begin(1, 0)

    with ours, theirs:
        rehearsal.rehearse(work)


def settle() -> None:
    """Measure the memory that every child inherits; call it when all is loaded."""
    for guest in _guests:
        guest.settle()
    with open("/proc/self/statm", encoding="ascii") as file:
        size, resident, shared, *_ = map(int, file.read().split())
    page = os.sysconf("SC_PAGE_SIZE")
    _held.update(memory=(resident - shared) * page, address_space=size * page)


def jail(request: dict[str, Any], fds: list[int], init: int, uid: int | None) -> steps.Jail:
    """Return the jail that a child enters; the pidfd `init` is its pid 1."""
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
    """Turn the forked child into a guest. `fds`: control groups, then the guest's own.

    Send the supervisor, on the zygote's socket, the pidfds of pid 1 and of the guest, and the
    descriptor of the filter's notifications.
    """
    try:
        memory = _start(request, fds, jail, control)
        if _with_packages:  # .pth files run code: here, behind the walls
            importlib.import_module("site").addsitedir(PACKAGES)
        _run_guest[0](memory)
    except steps.StepError as exc:
        _fail(control, request, str(exc))
    except BaseException as exc:  # noqa: BLE001 - nothing may unwind into the zygote's loop
        _fail(control, request, f"{type(exc).__name__}: {exc}")
    os._exit(1)


def _fail(control: socket.socket, request: dict[str, Any], why: str) -> None:
    packets.send(control, "failed", number=request["number"], reason=f"enter_jail: {why}")


def _start(
    request: dict[str, Any], fds: list[int], jail: steps.Jail, control: socket.socket
) -> int | None:
    """Enter the jail, report it, give up all that is the zygote's; return the memory limit."""
    given = fds[request["groups"] :]
    pid = int(os.readlink("/proc/self"))  # the pid in the zygote host's namespace
    held = _enter(given, jail, control.fileno())
    entered = _ENTERED % (request["number"], pid)
    packets.send_bytes(control, entered, held, packets.PATIENT_ATTEMPTS)
    # Not before: as an ordinary user it could send no descriptors if all processes of that user
    # had more under way than it may open.
    rlimits.limit_open_files(jail.limits)
    syscalls.close_all_but({*range(len(given)), *_kept})
    _freshen()
    return jail.limits.memory


def _enter(given: list[int], jail: steps.Jail, control: int) -> list[int]:
    """Enter the jail with the descriptors `given`; return those for the supervisor."""
    _reset_signals()
    held = [jail.init, os.pidfd_open(os.getpid())]
    own = _lower(given)
    # Before there is a limit of descriptors, which those of the zygote would count against.
    syscalls.close_all_but({*own, *_kept, *jail.descriptors(), *held, control})
    steps.take(steps.FORKED, jail)
    return held if jail.listener is None else [*held, jail.listener]


def _reset_signals() -> None:
    _signal.set_wakeup_fd(-1)
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    os.setsid()


def _lower(given: list[int]) -> list[int]:
    """Move the guest's descriptors to 0, 1, 2 and so on, which the zygote keeps free."""
    for number, fd in enumerate(given):
        os.dup2(fd, number)
    return list(range(len(given)))


def _freshen() -> None:
    """Reseed what every guest would otherwise inherit alike: numpy's random, temporary names."""
    for freshen in _fresh:
        freshen()
    if "tempfile" in sys.modules:
        vars(sys.modules["tempfile"])["_name_sequence"] = None
