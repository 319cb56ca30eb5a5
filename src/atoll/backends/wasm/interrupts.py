"""Delivers SIGINT in the worker to the guest, by a thread of its own.

guest computes          KeyboardInterrupt is set in its memory, and its eval loop raises it
guest waits or sleeps   the wait ends and reports it; the guest raises it itself
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
"""Seconds until the interrupt is checked: the guest writes the same word without a lock, so the
worker's write may be lost."""


class Interrupts:
    """Whether the guest may be interrupted now, and how."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # noqa: TID251 - the worker does not fork
        self._open = self._waiting = False
        self._memory: LinearMemory | None = None
        self._cells: Cells | None = None
        self.due = False
        """Whether a wait has to end."""
        self.alarm, self._alarm_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def attach(self, memory: LinearMemory | None, cells: Cells | None) -> None:
        """Start with the guest of this memory."""
        self._memory, self._cells = memory, cells
        wake, wake_write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGINT, _nothing)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        threading.Thread(target=self._serve, args=(wake,), daemon=True).start()

    def gate(self, *, is_open: bool) -> bool:
        """Record that guest code begins or ends; return whether an interrupt is still pending."""
        with self._lock:
            self._open = is_open
            self._hush()
            return not is_open and self._pending()

    @contextlib.contextmanager
    def wait(self) -> Iterator[None]:
        """Run a block in which the guest waits: an interrupt ends the wait."""
        with self._lock:
            self._waiting = True
            if self._pending():  # it came after the guest had stopped computing
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
        """Deliver an interrupt."""
        with self._lock:
            if self._open and self._waiting:
                self._ring()
            elif self._open and self._cells is not None and self._memory is not None:
                self._memory.interrupt(self._cells)

    def _insist(self) -> bool:
        """Set the interrupt again if it is still pending; return whether it is."""
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
    """Do nothing: a handler is needed so that the signal wakes the thread."""
