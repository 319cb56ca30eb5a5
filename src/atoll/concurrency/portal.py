"""The event loop of the blocking API, and who drives it.

A thread of its own drives the loop. While the main thread waits for a call, it drives the loop
itself, which saves waking one thread with the call and another with the result. The loop's thread
takes over again once the main thread has made no call for a while.

    main thread:   run(work) ── drives ──▶ result      run(work) ── drives ──▶ result
    loop's thread: ── drives ──▶ waits ........ looks again after IDLE_SECONDS ....... drives ──▶
    other threads: run(work) ── handed to whichever drives ──▶ result
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import asyncio
import os
import sys
import threading
import time
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from atoll.concurrency import forks
from atoll.errors import SandboxLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from types import FrameType

T = TypeVar("T")
IDLE_SECONDS = 0.005
"""How long the loop may be left alone after a call of the main thread, which may make another."""
DEEPEST = 200
"""Calls that may be nested where the loop is driven: more than the loop's own work needs."""
FORKED = (
    "the sandbox belongs to the process that this one was forked from, whose threads are not here: "
    "open another one with create_sandbox() in this process"
)


class _Driver(Enum):
    THREAD = "the loop's thread"
    MAIN = "the main thread, in a call"
    NOBODY = "nobody: the main thread has just made a call, and may make another"


class Portal:
    """An event loop that blocking callers hand coroutines to."""

    _lock = forks.new_lock()
    _shared: ClassVar[Portal | None] = None

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._turn = threading.Condition(forks.new_lock())
        """Held to read or change what follows."""
        self._driver = _Driver.THREAD
        self._drives = 0
        """How often the main thread has driven the loop."""
        self._left_at = 0.0
        """When it last stopped."""
        self._handed_over = 0
        """Calls that are waited for and that the waiting thread does not drive."""
        self._asleep = False
        """Whether the loop's thread waits for the end of a long call."""
        self._thread = threading.Thread(target=self._serve, name="atoll-loop", daemon=True)
        self._thread.start()

    @classmethod
    def shared(cls) -> Portal:
        """Return the portal of this process; a forked process gets its own."""
        with cls._lock:
            if cls._shared is None or cls._shared.forked:
                cls._shared = cls()
            return cls._shared

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the one that the loop runs in."""
        return self._owner != os.getpid()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the loop and wait for it. An interrupt here cancels it there.

        SandboxLostError in a forked process, which has no thread for the loop.
        """
        if self._owner != os.getpid():
            work.close()
            raise SandboxLostError(FORKED)
        running = asyncio._get_running_loop()  # noqa: SLF001 - the public one raises if there is none
        if running is self._loop:
            work.close()
            raise RuntimeError(
                "a blocking call from a callback would wait for itself: use atoll.aio"
            )
        if running is None and not self._handed_over and _may_drive():
            return self._drive(work)
        return self._hand_over(work)

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        """Run `work` in the loop, and do not wait for it; nothing happens in a forked process."""
        if self.forked:
            work.close()
        else:
            asyncio.run_coroutine_threadsafe(work, self._loop)

    async def run_from_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the loop for a coroutine of another loop; both end together."""
        if self.forked:
            work.close()
            raise SandboxLostError(FORKED)
        with self._counted():
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _hand_over(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait while another thread runs `work`."""
        call = _Call(work)
        self._loop.call_soon_threadsafe(call.start)
        with self._counted():
            try:
                call.wait()
            except BaseException:
                self._loop.call_soon_threadsafe(call.cancel)
                raise
        return call.result()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Have the loop driven for a call that was handed over, at once and until its end."""
        with self._turn:
            self._handed_over += 1
            self._turn.notify_all()
        try:
            yield
        finally:
            with self._turn:
                self._handed_over -= 1

    def _drive(self, work: Coroutine[Any, Any, T]) -> T:
        """Drive the loop in this thread, the main one, until `work` is done.

        No handler of a signal runs within the loop: what it raises would hit any call at any line.
        """
        task: asyncio.Task[T] | None = None
        try:
            while True:
                with HeldSignals(self._stop_soon) as signals, self._driven_here():
                    task = task or self._loop.create_task(self._stop_loop_after(work))
                    self._loop.run_forever()
                if signals.came:
                    signals.deliver()
                if task.done():
                    return task.result()
        except BaseException:
            if task is None:
                work.close()
            elif not task.done():
                self._loop.call_soon_threadsafe(task.cancel)
            raise

    async def _stop_loop_after(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`, and let the main thread go at once if it drives the loop."""
        try:
            return await work
        finally:
            if self._driver is _Driver.MAIN:
                self._loop.stop()

    def _stop_soon(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)

    @contextmanager
    def _driven_here(self) -> Iterator[None]:
        """Take the loop from its thread if that drives it; let it look after the loop later."""
        with self._turn:
            while self._driver is _Driver.THREAD:  # which may be back before this thread had a core
                self._stop_soon()
                self._turn.wait()
            self._driver = _Driver.MAIN
            self._drives += 1
        try:
            yield
        finally:
            with self._turn:
                self._driver, self._left_at = _Driver.NOBODY, time.monotonic()
                if self._asleep or self._handed_over:
                    self._turn.notify_all()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        while True:
            self._loop.run_forever()
            with self._turn:
                self._driver, self._left_at = _Driver.NOBODY, time.monotonic()
                self._turn.notify_all()  # the main thread waits for this
                self._wait_until_left_alone()
                self._driver = _Driver.THREAD

    def _wait_until_left_alone(self) -> None:
        """Wait until the main thread has made no call for a while, or another thread makes one."""
        seen = -1
        while self._driver is _Driver.MAIN or not self._handed_over:
            if self._driver is _Driver.MAIN:
                self._asleep, seen = seen == self._drives, self._drives
                self._turn.wait(None if self._asleep else IDLE_SECONDS)
                self._asleep = False
            else:
                left = self._left_at + IDLE_SECONDS - time.monotonic()
                if left <= 0:
                    return
                self._turn.wait(left)


def _may_drive() -> bool:
    """Return whether this is the main thread, with room on its stack for the loop's work.

    Exceptions can be raised in any other thread (PyThreadState_SetAsyncExc), and nothing can hold
    them back there.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    try:
        sys._getframe(max(0, sys.getrecursionlimit() - DEEPEST))  # noqa: SLF001 - no other is as quick
    except ValueError:
        return True
    return False


class _Call(Generic[T]):
    """A coroutine handed to the loop; a lock wakes the thread that waits for it."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._waiting = threading.Lock()  # noqa: TID251 - no longer than one call, in its process
        self._waiting.acquire()

    def start(self) -> None:
        """Start the task; called in the loop's thread."""
        self._task = asyncio.get_running_loop().create_task(self._work)
        self._task.add_done_callback(lambda _: self._waiting.release())

    def cancel(self) -> None:
        """Cancel the task; called in the loop's thread, after `start`."""
        assert self._task is not None
        self._task.cancel()

    def wait(self) -> None:
        """Wait until the task is done; called in the caller's thread."""
        self._waiting.acquire()

    def result(self) -> T:
        """Return what the task returned, or raise what it raised."""
        assert self._task is not None
        return self._task.result()


_SIGNALS = sorted(_signal.valid_signals())


class HeldSignals:
    """Holds back the handlers of signals in the main thread, where they must not raise.

    Within the block, signals that have a handler in Python are noted, and `on_signal` is called.
    (The C module is used, since `signal` takes a microsecond for each signal that it looks up.)
    """

    def __init__(self, on_signal: Callable[[], None]) -> None:
        self._on_signal = on_signal
        self._replaced: dict[int, Any] = {}
        self.came: list[tuple[Callable[..., Any], int, FrameType | None]] = []
        """The signals that came, with their handlers."""

    def __enter__(self) -> Self:
        try:
            for number in _SIGNALS:
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
        for handler, number, frame in self.came:
            handler(number, frame)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.came.append((self._replaced[number], number, frame))
        self._on_signal()

    def _restore(self) -> None:
        while self._replaced:
            number, handler = next(iter(self._replaced.items()))
            _signal.signal(number, handler)
            del self._replaced[number]  # only now: until then a signal finds its handler there
