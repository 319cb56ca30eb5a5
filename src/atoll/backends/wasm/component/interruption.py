"""Interrupts in a component: the worker sets them in its memory while the gate is open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from port import WasmPort  # type: ignore[import-not-found]

_BEATS = 10_000


class WasmGate:
    """Reports to the worker when guest code runs; interrupts are set only then."""

    def __init__(self, port: WasmPort) -> None:
        self._port = port

    def run(self, work: Callable[[], Any], on_interrupt: Callable[[], Any]) -> Any:
        """Return `work()`, which may be interrupted; then return `on_interrupt()`."""
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
        if self._port.gate(open=False):  # one was just set: let it be raised here
            for _ in range(_BEATS):
                pass
