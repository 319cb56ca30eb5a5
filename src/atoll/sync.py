"""The blocking API: one event loop in a thread, and a typed facade over the async sandbox."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, Self, TypeVar

from atoll.errors import SandboxLostError
from atoll.files.sync import SyncFiles, blocking
from atoll.policy import names_keywords
from atoll.sandbox import NOT_COPIED, Sandbox

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from atoll.config import Handler
    from atoll.policy import Capability, Isolation
    from atoll.sandbox import BaseSandbox
    from atoll.types import SandboxResult

T = TypeVar("T")
FORKED = (
    "the sandbox belongs to the process that this one was forked from, whose threads are not here: "
    "open another one with create_sandbox() in this process"
)


class Portal:
    """An event loop in a daemon thread that blocking callers hand coroutines to."""

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _shared: ClassVar[Portal | None] = None

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="atoll-loop", daemon=True)
        self._thread.start()

    @classmethod
    def shared(cls) -> Portal:
        """Return the portal of this process; a forked process gets its own."""
        with cls._lock:
            if cls._shared is None:
                os.register_at_fork(after_in_child=cls._forget)
            if cls._shared is None or cls._shared.forked:
                cls._shared = cls()
            return cls._shared

    @classmethod
    def _forget(cls) -> None:
        """In a forked process: the lock may have been held by a thread that is not here."""
        cls._lock = threading.Lock()

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the one that the loop runs in."""
        return self._owner != os.getpid()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the loop's thread and wait for it. An interrupt here cancels it there.

        SandboxLostError in a forked process, which has no such thread.
        """
        if self.forked:
            work.close()
            raise SandboxLostError(FORKED)
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError(
                "a blocking call from a callback would wait for itself: use atoll.aio"
            )
        call = _Call(work)
        self._loop.call_soon_threadsafe(call.start)
        try:
            call.wait()
        except BaseException:
            self._loop.call_soon_threadsafe(call.cancel)
            raise
        return call.result()

    async def bring(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the loop's thread for a coroutine of another loop; both end together."""
        if self.forked:
            work.close()
            raise SandboxLostError(FORKED)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


class _Call(Generic[T]):
    """A coroutine handed to the loop; a lock wakes the thread that waits for it."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._waiting = threading.Lock()
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


class SyncSandbox:
    """A sandbox for blocking code: every method of Sandbox, with the same arguments."""

    def __init__(self, box: BaseSandbox) -> None:
        self._inner = box
        self._portal = Portal.shared()
        self._run = self._portal.run

    @property
    def inner(self) -> BaseSandbox:
        """The async sandbox; call it in the portal's loop only."""
        return self._inner

    @property
    def portal(self) -> Portal:
        """The event loop that the async sandbox runs in."""
        return self._portal

    @property
    def backend(self) -> str:
        """The backend's name."""
        return self._inner.backend

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What the backend can do."""
        return self._inner.capabilities

    @property
    def isolation(self) -> Isolation:
        """How strongly the guest is isolated from the host."""
        return self._inner.isolation

    initialize = blocking(Sandbox.initialize)

    @names_keywords("option of execute")
    def execute(
        self, code: str, *, timeout_ms: float | None = None, key: str | None = None
    ) -> SandboxResult:
        """Run a cell; its variables are kept for the next one.

        `key` makes the call idempotent: a key that was used before returns that call's result.
        """
        return self._run(self._inner.execute(code, timeout_ms=timeout_ms, key=key))

    shell = blocking(Sandbox.shell)
    validate_code = blocking(Sandbox.validate_code)
    get_variable = blocking(Sandbox.get_variable)
    has_variable = blocking(Sandbox.has_variable)
    variables = blocking(Sandbox.variables)
    set_variable = blocking(Sandbox.set_variable)
    add_tool = blocking(Sandbox.add_tool)
    remove_tool = blocking(Sandbox.remove_tool)
    set_tools = blocking(Sandbox.set_tools)
    cancel = blocking(Sandbox.cancel)
    checkpoint = blocking(Sandbox.checkpoint)
    rollback = blocking(Sandbox.rollback)
    branches = blocking(Sandbox.branches)
    save = blocking(Sandbox.save)

    @property
    def tools(self) -> Mapping[str, Handler]:
        """The host functions that guest code may call now, by name."""
        return self._inner.tools

    @property
    def files(self) -> SyncFiles:
        """The guest's files: list, read, write, edit, search, move, delete, upload, download."""
        return SyncFiles(self._inner.files, self._run)

    def fork(self) -> SyncSandbox:
        """Return a live clone with the same variables and files; the two are independent."""
        return SyncSandbox(self._run(self._inner.fork()))

    def destroy(self) -> None:
        """End the guest and free everything it used. Calling it again does nothing.

        Nothing happens in a forked process: the sandbox is its parent's.
        """
        if not self._portal.forked:
            self._run(self._inner.destroy())

    def __repr__(self) -> str:
        return repr(self._inner)

    def __reduce__(self) -> NoReturn:
        raise TypeError(NOT_COPIED)  # by copy and deepcopy too

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.destroy()
