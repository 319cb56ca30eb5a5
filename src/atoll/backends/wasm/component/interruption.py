"""Interrupts in a component: set by the host from outside, while the gate is open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from port import WasmPort  # type: ignore[import-not-found]

_BEATS = 10_000


class WasmGate:
    """Tells the host when guest code runs; no interrupt is set at any other moment."""

    def __init__(self, port: WasmPort) -> None:
        self._port = port

    def run(self, work: Callable[[], Any], on_interrupt: Callable[[], Any]) -> Any:
        """`work()`, interruptible; `on_interrupt()` if an interrupt left it."""
        try:
            try:
                self._port.gate(open=True)
                return work()
            finally:
                self._shut()
        except KeyboardInterrupt:
            self._port.gate(open=False)
            return on_interrupt()

    def _shut(self) -> None:
        if self._port.gate(open=False):  # one was set just now: let it come here
            for _ in range(_BEATS):
                pass
