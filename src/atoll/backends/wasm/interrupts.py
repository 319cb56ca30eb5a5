"""SIGINT in the worker: noted, and brought to the guest wherever it is just then.

guest computes        a thread wakes the engine; the guest's own loop raises KeyboardInterrupt
guest waits or sleeps the wait ends and says so; the guest raises it itself
between cells         dropped
"""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

from atoll.backends.wasm.memory import UnknownLayoutError

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.backends.wasm.instance import Instance
    from atoll.backends.wasm.memory import Cells, LinearMemory


class Interrupts:
    """Whether the guest may be interrupted now, and whether it is to be."""

    def __init__(self) -> None:
        self._open = self._due = self._set = False
        self._memory: LinearMemory | None = None
        self._cells: Cells | None = None
        self.on_signal: Callable[[], None] = lambda: None
        """Called in the guest's thread, whether it may be interrupted or not."""
        self.alarm, self._alarm_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    @property
    def due(self) -> bool:
        """Whether an interrupt waits for the guest to take it."""
        return self._due

    def attach(self, instance: Instance, memory: LinearMemory | None, cells: Cells | None) -> None:
        """Bring interrupts to this instance from now on."""
        self._memory, self._cells = memory, cells
        instance.on_epoch(self._set_in_guest)
        signal.signal(signal.SIGINT, self._on_signal)
        wake, wake_write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        threading.Thread(target=_wake_on, args=(wake, instance), daemon=True).start()

    def gate(self, *, is_open: bool) -> bool:
        """Guest code begins or ends; whether an interrupt is in the guest and not yet raised."""
        pending = self._set
        self._open, self._due, self._set = is_open, False, False
        self._hush()
        return pending and not is_open

    def take(self) -> bool:
        """Whether an interrupt is due; the guest raises it itself."""
        due, self._due = self._due, False
        self._hush()
        return due

    def _hush(self) -> None:
        try:
            os.read(self.alarm, 4096)
        except BlockingIOError:
            return

    def _on_signal(self, *_: object) -> None:
        self.on_signal()
        if self._open:
            self._due = True
            os.write(self._alarm_write, b"!")

    def _set_in_guest(self) -> None:
        """In the guest's thread, while it computes."""
        if not self._due or self._memory is None or self._cells is None:
            return
        try:
            self._memory.interrupt(self._cells)
        except UnknownLayoutError:
            return  # it cannot be reached; the host will end it
        self._due, self._set = False, True


def _wake_on(fd: int, instance: Instance) -> None:
    """In a thread: a signal has come, and the guest may be deep in its own code."""
    while os.read(fd, 4096):
        instance.wake()
