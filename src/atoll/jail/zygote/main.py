"""The zygote: an interpreter with its libraries imported that forks guests on request.

Single-threaded, and no guest code ever runs in it. Heaps are collapsed into huge pages and
frozen before it serves, so that a fork copies little and a guest's collector touches none of it.
"""

from __future__ import annotations

import ast
import contextlib
import fcntl
import gc
import importlib
import io
import json
import os
import select
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

from atoll.jail.supervisor import packets
from atoll.jail.walls import steps, syscalls
from atoll.jail.zygote import after_fork, zygote_memory
from atoll.jail.zygote.fork_guest import GuestTemplate
from atoll.jail.zygote.zygote_host import (
    BIND_NOW,
    CONTROL_FD,
    INITS_FD,
    READY_INITS,
    end_jails,
    reap,
)

if TYPE_CHECKING:
    from types import ModuleType

    from atoll.jail.supervisor.spec import ForkRequest

ROOM_A_LINE = 12 << 20
"""Heap to reserve for each import statement; what is not used is freed."""
GUEST_FDS = 8
"""The most descriptors that a guest may be given."""
HOST_GONE = "the zygote host is gone"
_TAKEN = packets.encode("taken", {})
_ENDED = b'{"kind": "ended", "number": %d, "status": %d}'
"""Made without the JSON encoder: the zygote would copy the pages of it for each guest."""


def main(lines: str, role: str = "", settings: str = "") -> NoReturn:
    """Run `lines` (a JSON list of import statements), then serve.

    Children run the guest, or the function that `role` (module:function) returns for `settings`.
    """
    started = time.monotonic()
    os.environ.pop(BIND_NOW, None)
    gc.disable()  # modules are not garbage: to look for some takes a tenth of their import
    control, inits = _take_sockets()
    wanted = json.loads(lines)
    blocks = zygote_memory.reserve_arenas(len(wanted) * ROOM_A_LINE)
    hooks = after_fork.LibraryHooks()
    hooks.collect()
    names, missing = load(wanted)
    template = GuestTemplate(names, hooks, role, settings)
    blocks.clear()
    steps.prepare_forked()
    template.rehearse()
    hooks.sleep()
    hooks.rehearse()
    gc.collect()
    gc.freeze()
    gc.enable()
    memory = zygote_memory.settle()
    template.settle()
    ready: dict[str, Any] = {
        "missing": missing,
        "seconds": round(time.monotonic() - started, 3),
        "threads": len(os.listdir("/proc/self/task")),
        **memory,
    }
    packets.send(control, "ready", **ready)
    Zygote(control, inits, template).serve()


def _take_sockets() -> tuple[socket.socket, socket.socket]:
    """Move both sockets to higher numbers: a guest's descriptors take the lowest ones."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, GUEST_FDS) for fd in (CONTROL_FD, INITS_FD)]
    for fd in range(CONTROL_FD, GUEST_FDS):
        os.dup2(0, fd)
    return socket.socket(fileno=high[0]), socket.socket(fileno=high[1])


class Zygote:
    """The event loop: fork guests, report them, reap them."""

    def __init__(
        self, control: socket.socket, inits: socket.socket, template: GuestTemplate
    ) -> None:
        self._control, self._inits, self._template = control, inits, template
        self._home = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._wake, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._guests: dict[int, tuple[int, int]] = {}
        """By pid: the supervisor's number of the guest, and the pidfd of its jail's pid 1."""
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _ignore)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def serve(self) -> NoReturn:
        """Serve until the supervisor or the zygote host is gone."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if self._wake in ready:
                os.read(self._wake, 4096)
                self._reap()
            if self._control.fileno() in ready:
                self._on_request()

    def _reap(self) -> None:
        """Report each end with the jail's pid 1, which the supervisor may not know yet."""
        for pid, status in reap():
            if pid not in self._guests:  # a preloaded library has started it
                continue
            number, init = self._guests.pop(pid)
            packets.send_bytes(self._control, _ENDED % (number, status), [init])
            os.close(init)

    def _on_request(self) -> None:
        try:
            message = packets.receive(self._control, packets.SMALL)
        except BlockingIOError:
            return
        if message is None:
            os._exit(0)
        request: Any = message.fields
        try:
            self._fork_guest(request, message.fds)
        except OSError as exc:
            number = request["number"]
            packets.send(self._control, "not_forked", number=number, reason=f"fork: {exc}")
        packets.close_all(message.fds)

    def _fork_guest(self, request: ForkRequest, fds: list[int]) -> None:
        """Fork a guest into an empty jail."""
        init, uid = self._enter_next_jail()
        jail = self._template.jail(request, fds, init, uid)
        try:
            pid = os.fork()
            if pid == 0:
                self._become_guest(request, fds, jail)
        except OSError:
            end_jails([init])
            raise
        finally:
            self._leave_jail()
        self._guests[pid] = request["number"], init

    def _leave_jail(self) -> None:
        try:  # noqa: SIM105 - `suppress` takes ten pages more of the zygote, for each guest
            syscalls.join(self._home)
        except OSError:  # the next fork enters another namespace anyway
            pass

    def _become_guest(self, request: ForkRequest, fds: list[int], jail: steps.Jail) -> NoReturn:
        """Run the child. SECURITY: nothing may unwind into the zygote's event loop."""
        try:
            self._template.become(request, fds, jail, self._control)
        finally:
            os._exit(1)

    def _enter_next_jail(self) -> tuple[int, int | None]:
        """Enter the pid namespace of an empty jail for the next fork; return its pidfd and uid.

        Empty jails may have failed or been killed while they waited: try one more than wait.
        """
        reason = ""
        for _ in range(READY_INITS + 1):
            packets.send_bytes(self._inits, _TAKEN)
            jail = packets.receive(self._inits, packets.SMALL)
            if jail is None:
                raise OSError(HOST_GONE)
            try:
                if jail.fields["error"]:
                    raise OSError(jail.fields["error"])  # noqa: TRY301 - as if entering had failed
                syscalls.join(jail.fds[0], syscalls.CLONE_NEWPID)
            except OSError as exc:
                reason = str(exc)
                end_jails(jail.fds)
            else:
                return jail.fds[0], jail.fields["uid"]
        raise OSError(reason)


def _ignore(*_args: object) -> None:
    """SIGCHLD has to be handled to reach the wake-up pipe."""


def load(lines: list[str]) -> tuple[dict[str, ModuleType], list[str]]:
    """Run import statements; the modules by the names they bind, and what could not be had."""
    modules: dict[str, ModuleType] = {}
    missing = []
    for line in lines:
        for module, name, bound in _bindings(line):
            try:
                importlib.import_module(module)
                modules[name] = sys.modules[bound]
            except Exception as exc:  # noqa: BLE001 - a library may fail in any way as it loads
                missing.append(f"{module}: {type(exc).__name__}: {exc}"[:300])
    _calm()
    _warm_up(modules)
    return modules, missing


def _bindings(line: str) -> list[tuple[str, str, str]]:
    """Return what a statement imports: each module, a name, and the module bound to that name."""
    statement = ast.parse(line).body[0]
    if isinstance(statement, ast.ImportFrom):
        full = {
            alias.asname or alias.name: f"{statement.module}.{alias.name}"
            for alias in statement.names
        }
        return [(module, name, module) for name, module in full.items()]
    if isinstance(statement, ast.Import):
        return [
            (alias.name, alias.asname, alias.name) if alias.asname else (alias.name, top, top)
            for alias in statement.names
            for top in [alias.name.partition(".")[0]]
        ]
    raise ValueError(f"not an import statement: {line!r}")


def _calm() -> None:
    """A plot needs no window."""
    if "matplotlib" in sys.modules:
        sys.modules["matplotlib"].use("Agg")


def _warm_up(modules: dict[str, Any]) -> None:
    """Do once what every guest would do first, so that it finds the caches full."""
    with contextlib.suppress(Exception):
        if "plt" in modules:
            figure, axes = modules["plt"].subplots()
            axes.plot([1, 2])
            axes.set_title("warm")
            figure.savefig(io.BytesIO())
            modules["plt"].close(figure)
            fonts = vars(modules["matplotlib"].font_manager)["_get_font"]
            fonts.cache_clear()  # as every fork does, and would copy the pages they are on
    with contextlib.suppress(Exception):
        if "pd" in modules:
            frame = modules["pd"].DataFrame({"a": [1, 2, 3], "b": list("xyx")})
            frame.groupby("b").a.mean()
            str(frame.groupby("b").a.agg(["mean", "sum"]))
            frame.describe()
            str(frame), frame._repr_html_()
            modules["pd"].read_csv(io.StringIO(frame.to_csv()))


if __name__ == "__main__":
    main(*sys.argv[1:])
