"""A program that inspects a new component: its version of Python, and how to interrupt it.

It tries an interrupt. If that does not work, guests are killed instead of interrupted.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
import threading
from dataclasses import astuple
from typing import TYPE_CHECKING

from atoll.backends.wasm.instance import Instance, Place
from atoll.backends.wasm.memory import LinearMemory, UnknownLayoutError
from atoll.backends.wasm.worker import FREE_FUEL, Runtime
from atoll.guest.shared import rpc

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.backends.wasm.memory import Cells
    from atoll.guest.shared.messages import Json

SECONDS = 5.0
FUEL = 50_000_000_000
FACTS = "import sys; [list(sys.version_info[:3]), id(KeyboardInterrupt)]"


_SILENT = {
    "call": "",
    "emit": None,
    "take": "",
    "fill": False,
    "put": None,
    "sleep": False,
    "leave": None,
}
"""What callbacks return that do nothing."""


class Subject:
    """One guest under examination."""

    def __init__(self, runtime: Runtime, image: str, folder: str) -> None:
        self._on_gate: Callable[[bool], None] = lambda _open: None
        functions: dict[str, Callable[..., object]] = {"gate": self._gate}
        for name, value in _SILENT.items():
            functions[name] = functools.partial(_answer, value)
        places = [Place(folder, "/app", writable=True)]
        self._instance = Instance(runtime.engine, runtime.component, functions, places)
        self._image = image
        self.ask("initialize", {})

    def _gate(self, is_open: bool) -> bool:  # noqa: FBT001 - the component's signature
        self._on_gate(is_open)
        return False

    def ask(self, method: str, params: Json) -> Json:
        """Send a request and return its result."""
        line = rpc.request("1", method, params)[:-1].decode("ascii")
        answer = rpc.decode(self._instance.handle(line, min(FUEL, FREE_FUEL)).encode("ascii"))
        result: Json = answer["result"]
        return result

    def facts(self) -> tuple[list[int], int]:
        """Return the version of Python, and the address of KeyboardInterrupt."""
        version, interrupt = self.ask("execute", {"code": FACTS})["value"]
        return version, interrupt

    def find_cells(self, interrupt: int) -> Cells | None:
        """Return the addresses for interrupts after a test; None if it fails."""
        memory = LinearMemory(self._image)
        try:
            cells = memory.cells(interrupt)
        except UnknownLayoutError:
            return None
        self.ask("execute", {"code": "kept = 41"})
        timer = threading.Timer(0.05, memory.interrupt, [cells])
        self._on_gate = lambda is_open: timer.start() if is_open else None
        stopped = self.ask("execute", {"code": "while True: pass"})["kind"] == "interrupted"
        self._on_gate = lambda _open: None
        return cells if stopped and self.ask("execute", {"code": "kept"})["value"] == 41 else None


def _answer(value: object, *_args: object) -> object:
    return value


def main(image: str) -> None:
    """Print the findings as JSON."""
    threading.Timer(SECONDS * 6, os._exit, [1]).start()
    with tempfile.TemporaryDirectory() as folder:
        subject = Subject(Runtime(image, None), image, folder)
        version, interrupt = subject.facts()
        cells = subject.find_cells(interrupt)
    print(json.dumps({"python": version, "cells": astuple(cells) if cells else None}))  # noqa: T201
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
