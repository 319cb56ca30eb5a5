"""SIGINT becomes KeyboardInterrupt while guest code runs, and at no other moment.

The host interrupts a cell by SIGINT. Between cells the signal is dropped, and while the runtime
moves a message over the channel it is held back, so that no message is ever torn.

(The C modules are used, as `signal` and `threading` would cost a guest milliseconds to start.)
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Callable


class InterruptGate:
    """Decides what SIGINT does now; entered (`with gate:`) where it must wait."""

    def __init__(self) -> None:
        self._open = False
        self._pending = False
        self._held = 0
        self.seen = 0
        """Interrupts that have come, to whatever effect."""
        self._main = _thread.get_ident()

    def run(self, work: Callable[[], Any], on_interrupt: Callable[[], Any]) -> Any:
        """`work()`, interruptible; `on_interrupt()` if an interrupt left it."""
        try:
            try:
                self._install()
                self._pending, self._open = False, True
                return work()
            finally:
                self._open = False
        except KeyboardInterrupt:
            self._open = False  # the signal may have come just before the line above
            return on_interrupt()

    def _install(self) -> None:
        _signal.signal(_signal.SIGINT, self.on_signal)

    def on_signal(self, _signum: int, _frame: FrameType | None) -> None:
        """Handle SIGINT: the interrupt itself, or a note that one is due."""
        self.seen += 1
        if not self._open:
            return
        if self._held:
            self._pending = True
            return
        raise KeyboardInterrupt

    def __enter__(self) -> None:
        if _thread.get_ident() == self._main:  # handlers only ever run in the main thread
            self._held += 1

    def __exit__(self, *_exc: object) -> None:
        if _thread.get_ident() != self._main:
            return
        self._held -= 1
        if self._pending and not self._held and self._open:
            self._pending = False
            raise KeyboardInterrupt
