"""SIGINT becomes KeyboardInterrupt while guest code runs, and at no other moment.

The host interrupts a cell by SIGINT. Between cells the signal is dropped, and while the runtime
moves a message over the channel it is held back, so that no message is ever torn. Once guest code
handles other signals, those wait until guest code runs again: its handlers may raise.

(The C modules are used, as `signal` and `threading` would cost a guest milliseconds to start.)
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import sys

from .imports import when_loaded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Callable


LOOP_TURN_SECONDS = 0.05
"""What an event loop has to pass a cancellation on, before its task is interrupted instead."""
THREADS_SECONDS = 0.12
"""How long an interrupted cell may wait for its threads before it is interrupted again: half of
what the host gives it to end."""
_WAITERS = ("/threading.py", "/asyncio/runners.py")
"""Where a cell waits for threads to end: those of a pool at the end of its `with` block, and those
of asyncio.to_thread at the end of asyncio.run()."""


class InterruptGate:
    """Decides what SIGINT does now; entered (`with gate:`) where it must wait."""

    def __init__(self) -> None:
        self._open = False
        self._pending = False
        self._held = 0
        self.seen = 0
        """Interrupts that have come, to whatever effect."""
        self._own = False
        """Whether the next SIGINT is this process's own."""
        self._runs = 0
        """How often code was run: an interrupt of our own is for one run only."""
        self._insisting: list[Any] = []
        """Locks that end with the run: a thread waits for each, to interrupt it again."""
        self._others: list[int] = []
        """The signals that are blocked while no guest code runs, once it handles any."""
        self._mask: Any = None
        """The signals that guest code itself has blocked, while more are."""
        self._main = _thread.get_ident()
        self._handler = self.on_signal

    def run(self, work: Callable[[], Any], on_interrupt: Callable[[], Any]) -> Any:
        """Return `work()`, which may be interrupted: return `on_interrupt()` then."""
        try:
            try:
                self._install()
                self._pending, self._open, self._runs = False, True, self._runs + 1
                return work()
            finally:
                self._open = False
                while self._insisting:
                    self._insisting.pop().release()
        except KeyboardInterrupt:
            self._open = False  # the signal may have come just before the line above
            return on_interrupt()

    def _install(self) -> None:
        _signal.signal(_signal.SIGINT, self._handler)

    def allow_signals(self) -> None:
        """Let signals through to their handlers: a cell is about to run."""
        if self._mask is not None:
            _set_mask(_signal.SIG_SETMASK, self._mask)

    def hold_signals(self) -> None:
        """Block signals that guest code handles: its cell has ended."""
        if self._others:
            self._mask = _set_mask(_signal.SIG_BLOCK, ()) or set()
            _set_mask(_signal.SIG_BLOCK, self._others)

    def forget_signals(self) -> None:
        """Forget the handlers that a zygote has set: no guest code has set any yet."""
        self._others, self._mask = [], None

    def serve_signals(self) -> None:
        """Note when guest code handles a signal of its own."""
        shown = sys.modules["_signal"]
        if hasattr(shown.signal, "__wrapped__"):
            return
        real = shown.signal

        def signal(signalnum: int, handler: Any, /) -> Any:
            """Set the action for the given signal."""
            before = real(signalnum, handler)
            if callable(handler) and signalnum != _signal.SIGINT and not self._others:
                self._others = sorted(set(_signal.valid_signals()) - {_signal.SIGINT})
            return before

        signal.__wrapped__ = real  # type: ignore[attr-defined]
        vars(shown)["signal"] = signal

    def serve_asyncio(self) -> None:
        """Let asyncio.run() treat an interrupt as in a script: it cancels the main task first.

        asyncio does so where SIGINT has Python's own handler, which this one stands for here.
        """
        for name in ("_signal", "signal"):  # the second, if it comes later, copies the first
            if name in sys.modules:
                vars(sys.modules[name])["default_int_handler"] = self._handler
        when_loaded("asyncio.runners", self._change_runner)

    def _change_runner(self, module: Any) -> None:
        runner: Any = getattr(module, "Runner", None)  # new in Python 3.11
        real = getattr(runner, "_on_sigint", None)
        if real is None or hasattr(real, "__wrapped__"):
            return

        def on_sigint(runner: Any, signum: int, frame: FrameType | None, main_task: Any) -> None:
            self._count()
            real(runner, signum, frame, main_task)
            self._insist(runner.get_loop())

        on_sigint.__wrapped__ = real  # type: ignore[attr-defined]
        runner._on_sigint = on_sigint  # noqa: SLF001 - there is no public way to count signals

    def _insist(self, loop: Any) -> None:
        """Interrupt again, as a second Ctrl-C does, if the loop does not turn.

        A coroutine that computes or blocks never gets to the await where it would be cancelled.
        """
        turned = _thread.allocate_lock()
        turned.acquire()
        loop.call_soon_threadsafe(turned.release)
        self._interrupt_again(turned, LOOP_TURN_SECONDS)
        self._insist_on_threads()

    def _insist_on_threads(self) -> None:
        """Interrupt again, as a second Ctrl-C does, if the code goes on waiting for its threads."""
        over = _thread.allocate_lock()
        over.acquire()
        self._insisting.append(over)
        self._interrupt_again(over, THREADS_SECONDS)

    def _interrupt_again(self, unless: Any, seconds: float) -> None:
        """Interrupt this run again after a while, unless a lock is released before."""
        run = self._runs

        def interrupt() -> None:
            if not unless.acquire(True, seconds) and self._open and self._runs == run:
                self._own = True
                _signal.pthread_kill(self._main, _signal.SIGINT)

        try:
            _thread.start_new_thread(interrupt, ())
        except Exception:  # no thread is left to the guest; `restricted` allows none, from 3.12 on
            pass

    def _count(self) -> bool:
        """Count an interrupt that came from the host; return False for one of our own."""
        own, self._own = self._own, False
        self.seen += not own
        return not own

    def on_signal(self, _signum: int, frame: FrameType | None) -> None:
        """Handle SIGINT: the interrupt itself, or a note that one is due."""
        own = not self._count()
        if not self._open or (own and not _waits_for_threads(frame)):  # our own comes late
            return
        if self._held:
            self._pending = True
            return
        if not own:
            self._insist_on_threads()
        raise KeyboardInterrupt

    on_signal.__module__ = "signal"  # guest code finds it as signal.default_int_handler

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


def _set_mask(how: int, signals: Any) -> Any:
    """Block or unblock signals and return those blocked before; None if a handler has raised.

    The kernel's mask is set then all the same, and there is no code that the exception is for.
    """
    try:
        return _signal.pthread_sigmask(how, signals)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None


def _waits_for_threads(frame: FrameType | None) -> bool:
    """Return whether the code that was interrupted waits for threads to end."""
    while frame is not None:
        if frame.f_code.co_filename.endswith(_WAITERS):
            return True
        frame = frame.f_back
    return False
