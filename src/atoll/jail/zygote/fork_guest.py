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

from atoll.jail.supervisor import packets
from atoll.jail.supervisor.spec import NO_LIMITS, PACKAGES, WORK_FOLDER, limits_from, user_from
from atoll.jail.walls import rlimits, steps, syscalls
from atoll.jail.zygote import after_fork

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from types import ModuleType

    from atoll.jail.supervisor.spec import ForkRequest

PARTS = ("__main__", "state.clone", "state.keeper")
_REHEARSED = {"memory": 1, "disk": 1, "file_size": 1}
_ENTERED = b'{"kind": "entered", "number": %d, "pid": %d}'
"""Not packets.send: the JSON encoder would copy pages of the zygote."""


class GuestTemplate:
    """What the guests of one zygote have in common: it is loaded once, and they are its forks."""

    def __init__(
        self,
        names: dict[str, ModuleType],
        hooks: after_fork.LibraryHooks,
        role: str = "",
        settings: str = "",
    ) -> None:
        """Load all that a guest needs, or the function that `role` returns for `settings`."""
        self._has_packages = PACKAGES in sys.path
        self._guest: Any = None
        """The parts of a guest that all children share, unless they have another role."""
        self._kept: set[int] = set()
        """Descriptors of the zygote, with high numbers, that its children need."""
        self._memory = self._address_space = 0
        """Bytes that every child inherits from the zygote."""
        self._fresheners: list[Callable[[], object]] = [hooks.wake]
        """Functions that a child calls behind its walls, so that it differs from the others."""
        if "random" in sys.modules:
            self._fresheners.append(after_fork.random_reseeder())
        if hasattr(sys.modules.get("numpy"), "random"):  # not a folder of that name
            self._fresheners.append(after_fork.numpy_reseeder())
        if role:
            module, _, function = role.partition(":")
            self._run_role, kept = getattr(importlib.import_module(module), function)(settings)
            self._kept.update(kept)
            return
        start, *_ = (importlib.import_module(f"atoll.guest.{part}") for part in PARTS)
        self._guest = start.Guest(WORK_FOLDER, names)
        self._guest.rehearse()

    def rehearse(self) -> None:
        """Become a guest without effect, so that a child finds the code of all this specialised."""
        limits = {**dataclasses.asdict(NO_LIMITS), **_REHEARSED}
        request: ForkRequest = {"limits": limits, "groups": 1, "number": 0, "root": "", "user": {}}
        ours, theirs = packets.pair()

        def work() -> None:
            self._start(request, [0, 0], self.jail(request, [0, 0], 0, 0), ours)
            theirs.recv(packets.SMALL)
            if self._guest is not None:
                self._guest.begin(1, 0)

        with ours, theirs:
            after_fork.rehearse(work)

    def settle(self) -> None:
        """Measure the memory that every child inherits; call it when all is loaded."""
        if self._guest is not None:
            self._guest.settle()
        with open("/proc/self/statm", encoding="ascii") as file:
            size, resident, shared, *_ = map(int, file.read().split())
        page = os.sysconf("SC_PAGE_SIZE")
        self._memory, self._address_space = (resident - shared) * page, size * page

    def jail(self, request: ForkRequest, fds: list[int], init: int, uid: int | None) -> steps.Jail:
        """Return the jail that a child enters; the pidfd `init` is its pid 1."""
        groups = fds[: request["groups"]]
        return steps.Jail(
            limits=limits_from(request["limits"]),
            binds=(),
            host_uid=uid,
            cgroup_fds=groups,
            counted=bool(groups),
            init=init,
            inherited=self._address_space,
            root=request["root"],
            user=user_from(request["user"]),
        )

    def become(
        self, request: ForkRequest, fds: list[int], jail: steps.Jail, control: socket.socket
    ) -> NoReturn:
        """Turn the forked child into a guest. `fds`: control groups, then the guest's own.

        Send the supervisor, on the zygote's socket, the pidfds of pid 1 and of the guest, and the
        descriptor of the filter's notifications.
        """
        try:
            memory = self._start(request, fds, jail, control)
            if self._has_packages:  # .pth files run code: here, behind the walls
                importlib.import_module("site").addsitedir(PACKAGES)
            if self._guest is None:
                self._run_role()
            else:
                self._guest.run(memory, self._memory)
        except steps.StepError as exc:
            _fail(control, request, str(exc))
        except BaseException as exc:  # noqa: BLE001 - nothing may unwind into the zygote's loop
            _fail(control, request, f"{type(exc).__name__}: {exc}")
        os._exit(1)

    def _start(
        self, request: ForkRequest, fds: list[int], jail: steps.Jail, control: socket.socket
    ) -> int | None:
        """Enter the jail, report it, give up all that is the zygote's; return the memory limit."""
        given = fds[request["groups"] :]
        pid = int(os.readlink("/proc/self"))  # the pid in the zygote host's namespace
        held = self._enter(given, jail, control.fileno())
        entered = _ENTERED % (request["number"], pid)
        packets.send_bytes(control, entered, held, packets.PATIENT_ATTEMPTS)
        # Not before: as an ordinary user it could send no descriptors if all processes of that user
        # had more under way than it may open.
        rlimits.limit_open_files(jail.limits)
        syscalls.close_all_but({*range(len(given)), *self._kept})
        for freshen in self._fresheners:
            freshen()
        if "tempfile" in sys.modules:  # its names would be alike in every guest
            vars(sys.modules["tempfile"])["_name_sequence"] = None
        return jail.limits.memory

    def _enter(self, given: list[int], jail: steps.Jail, control: int) -> list[int]:
        """Enter the jail with the descriptors `given`; return those for the supervisor."""
        _signal.set_wakeup_fd(-1)
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        os.setsid()
        held = [jail.init, os.pidfd_open(os.getpid())]
        for number, fd in enumerate(given):  # to 0, 1, 2 and so on, which the zygote keeps free
            os.dup2(fd, number)
        # Before there is a limit of descriptors, which those of the zygote would count against.
        own = range(len(given))
        syscalls.close_all_but({*own, *self._kept, *jail.descriptors(), *held, control})
        steps.take(steps.FORKED, jail)
        return held if jail.listener is None else [*held, jail.listener]


def _fail(control: socket.socket, request: ForkRequest, why: str) -> None:
    packets.send(control, "failed", number=request["number"], reason=f"enter_jail: {why}")
