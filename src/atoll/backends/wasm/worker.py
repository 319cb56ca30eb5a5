"""The worker: a jailed process around one instance. It passes lines on, counts fuel, interrupts.

It runs Atoll's code. The guest inside it can use only the callbacks below.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from atoll.backends.wasm import engine
from atoll.backends.wasm.callbacks import Callbacks, HostGoneError, Lines, single
from atoll.backends.wasm.counters import Counters, Ending, Reading
from atoll.backends.wasm.instance import Instance, Place
from atoll.backends.wasm.interrupts import Interrupts
from atoll.backends.wasm.memory import Cells, LinearMemory, UnknownLayoutError
from atoll.guest.shared import rpc
from atoll.jail.supervisor.spec import WORK_ALIAS, WORK_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from atoll.guest.shared.messages import Json


OUTPUT_FD, COUNTERS_FD = 3, 4
FREE_FUEL = 1 << 60
UNCOUNTED = ("initialize", "save", "restore")
"""Requests of the host itself, such as parsing a context; they have a time limit but no fuel."""
OUT_OF_FUEL = "fuel"
FIRST_HIGH_FD = 16


class Worker:
    """One guest from its first line to its last."""

    def __init__(self, runtime: Runtime, places: Sequence[Place]) -> None:
        requests, answers = _take_channel()
        self._lines, self._counters = Lines(requests, answers), Counters(COUNTERS_FD)
        self._budget = self._fuel = FREE_FUEL
        interrupts = Interrupts()
        self._lines.watch(interrupts.alarm)
        self._callbacks = Callbacks(self._lines, interrupts)
        functions = self._callbacks.by_name()
        self._instance = Instance(runtime.engine, runtime.component, functions, places)
        self._callbacks.memory = runtime.memory()
        interrupts.attach(self._callbacks.memory, runtime.cells)
        self._callbacks.on_leave = self._leave
        self._instance.handle("", FREE_FUEL)

    def serve(self) -> NoReturn:
        """Serve until the host closes the channel, or the guest traps."""
        self._lines.write(rpc.notification("ready", {})[:-1])
        try:
            while (line := self._lines.read()) is not None:
                message = rpc.decode(line)
                if "method" in message:  # otherwise an answer that came too late
                    self._handle(message, line.decode("ascii"))
        except HostGoneError:
            os._exit(0)
        os._exit(1)

    def _handle(self, message: Json, line: str) -> None:
        if message["method"] == "initialize":
            self._obey(message["params"])
        self._fuel = FREE_FUEL if message["method"] in UNCOUNTED else self._budget
        self._counters.write(Reading(0))  # the last request's fuel is not this one's
        try:
            answer = self._instance.handle(line, self._fuel)
        except HostGoneError:
            raise
        except Exception as exc:  # noqa: BLE001 - a guest may make wasmtime raise anything
            self._end(exc)
        self._callbacks.drop_passed_fd()
        self._note(Ending.NONE)
        self._lines.write(single(answer))

    def _obey(self, params: Json) -> None:
        """Apply the limits in the handshake."""
        self._budget = FREE_FUEL if params["fuel"] is None else params["fuel"]
        if params["linear_memory"] is not None:
            self._instance.limit_memory(params["linear_memory"])

    def _note(self, ending: Ending) -> None:
        self._counters.write(Reading(self._fuel - self._instance.fuel_left(), ending))

    def _end(self, exc: Exception) -> NoReturn:
        """End the worker of a dead guest; the host reads the reason from the counters."""
        from wasmtime import ExitTrap  # noqa: PLC0415 - an extra

        if isinstance(exc, ExitTrap):
            self._leave(exc.code & 0xFF)
        spent = self._instance.fuel_left() == 0 and OUT_OF_FUEL in str(exc)
        if not spent:
            os.write(2, f"{_reason(exc)}\n".encode())
        self._note(Ending.FUEL if spent else Ending.TRAP)
        os._exit(1)

    def _leave(self, code: int) -> NoReturn:
        self._note(Ending.EXIT)
        os._exit(code)


class Runtime:
    """Engine and compiled component: loaded once, inherited by every fork."""

    def __init__(self, image: str, cells: Cells | None) -> None:
        self.image, self.cells = image, cells
        self.engine = engine.make()
        self.component = engine.load(self.engine, image)

    def memory(self) -> LinearMemory | None:
        """Return the instance's memory, if it can be found."""
        try:
            return LinearMemory(self.image)
        except UnknownLayoutError:
            return None


def main(settings: str) -> NoReturn:
    """Run a worker. `settings` (JSON): the image, the interrupt's cells, the places."""
    Worker(runtime_of(settings), places_of(settings)).serve()


def prepare(settings: str) -> tuple[Callable[[], NoReturn], list[int]]:
    """Load the component in a zygote; return what each child runs, and descriptors to keep.

    wasmtime maps the image again for each instance, through its own descriptor.
    """
    low = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(FIRST_HIGH_FD)]
    runtime = runtime_of(settings)
    for fd in low:
        os.close(fd)
    return lambda: Worker(runtime, places_of(settings)).serve(), _open_files(runtime.image)


def _open_files(path: str) -> list[int]:
    return [
        int(fd)
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}") and os.readlink(f"/proc/self/fd/{fd}") == path
    ]


def runtime_of(settings: str) -> Runtime:
    """Return the engine and component of these settings."""
    given = json.loads(settings)
    sys.path.append(given["library"])
    return Runtime(given["image"], Cells(*given["cells"]) if given["cells"] else None)


def places_of(settings: str) -> list[Place]:
    """Return the folders that the guest sees: its working folder, by both names, and others."""
    here = os.getcwd()
    places = [Place(here, name, writable=True) for name in (WORK_FOLDER, WORK_ALIAS)]
    return places + [Place(*place) for place in json.loads(settings)["places"]]


def _take_channel() -> tuple[int, int]:
    """Move the channel to other descriptors, so that 1 and 2 are the guest's output."""
    requests = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, FIRST_HIGH_FD)
    answers = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, FIRST_HIGH_FD)
    os.dup2(OUTPUT_FD, 1)
    os.close(OUTPUT_FD)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return requests, answers


def _reason(exc: Exception) -> str:
    """Return the last line of wasmtime's report, which has the cause."""
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    return lines[-1][:500] if lines else type(exc).__name__


if __name__ == "__main__":
    main(sys.argv[1])
