"""Holds back the handlers of signals, in the main thread, where they must not raise."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_ALL = sorted(_signal.valid_signals())


class HeldSignals:
    """Within the block, signals that have a handler in Python are noted, and `on_signal` is called.

    (The C module is used, since `signal` takes a microsecond for each signal that it looks up.)
    """

    def __init__(self, on_signal: Callable[[], None]) -> None:
        self._on_signal = on_signal
        self._replaced: dict[int, Any] = {}
        self._came: list[tuple[Callable[..., Any], int, FrameType | None]] = []

    def __enter__(self) -> Self:
        try:
            for number in _ALL:
                handler = _signal.getsignal(number)
                if callable(handler):
                    self._replaced[number] = handler
                    _signal.signal(number, self._note)
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        try:
            self._restore()
        finally:
            self._restore()  # the rest, if the first handler that was back raised at once

    def deliver(self) -> None:
        """Call the handlers of the signals that came; they may raise."""
        for handler, number, frame in self._came:
            handler(number, frame)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append((self._replaced[number], number, frame))
        self._on_signal()

    def _restore(self) -> None:
        while self._replaced:
            number, handler = next(iter(self._replaced.items()))
            _signal.signal(number, handler)
            del self._replaced[number]  # only now: until then a signal finds its handler there
