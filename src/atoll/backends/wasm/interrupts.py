"""SIGINT in the worker: brought to the guest wherever it is just then, by a thread of its own.

guest computes          KeyboardInterrupt is left in its memory, and its own loop raises it
guest waits or sleeps   the wait ends and says so; the guest raises it itself
between cells           dropped
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.backends.wasm.memory import Cells, LinearMemory

INSIST_SECONDS = 0.005
"""The guest writes the same word without regard to us, so ours may be lost: we look again."""


class Interrupts:
    """Whether the guest may be interrupted now, and how."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = self._waiting = False
        self._memory: LinearMemory | None = None
        self._cells: Cells | None = None
        self.due = False
        """Whether a wait is to end."""
        self.alarm, self._alarm_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def attach(self, memory: LinearMemory | None, cells: Cells | None) -> None:
        """Begin, with the guest whose memory this is."""
        self._memory, self._cells = memory, cells
        wake, wake_write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGINT, _nothing)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        threading.Thread(target=self._serve, args=(wake,), daemon=True).start()

    def gate(self, *, is_open: bool) -> bool:
        """Guest code begins or ends; whether an interrupt is in the guest and not yet raised."""
        with self._lock:
            self._open = is_open
            self._hush()
            return not is_open and self._pending()

    @contextlib.contextmanager
    def wait(self) -> Iterator[None]:
        """The guest stands still in here: an interrupt ends the wait instead."""
        with self._lock:
            self._waiting = True
            if self._pending():  # it came too late to be raised before
                self._withdraw()
                self._ring()
        try:
            yield
        finally:
            with self._lock:
                self._waiting = False
                self._hush()

    def _serve(self, wake: int) -> None:
        while os.read(wake, 4096):
            self._bring()
            while self._insist():
                time.sleep(INSIST_SECONDS)

    def _bring(self) -> None:
        """An interrupt has come."""
        with self._lock:
            if self._open and self._waiting:
                self._ring()
            elif self._open and self._cells is not None and self._memory is not None:
                self._memory.interrupt(self._cells)

    def _insist(self) -> bool:
        """Whether the guest has not taken notice yet; told again, as the first word may be lost."""
        with self._lock:
            if not self._open or self._waiting or not self._pending():
                return False
            assert self._memory is not None
            assert self._cells is not None
            self._memory.interrupt(self._cells)
            return True

    def _pending(self) -> bool:
        if self._memory is None or self._cells is None:
            return False
        return self._memory.is_interrupted(self._cells)

    def _withdraw(self) -> None:
        assert self._memory is not None
        assert self._cells is not None
        self._memory.calm(self._cells)

    def _ring(self) -> None:
        self.due = True
        os.write(self._alarm_write, b"!")

    def _hush(self) -> None:
        self.due = False
        with contextlib.suppress(BlockingIOError):
            os.read(self.alarm, 4096)


def _nothing(*_: object) -> None:
    """The thread does it; but without a handler nobody would wake it."""
