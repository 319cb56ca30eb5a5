"""The blocking face: one event loop in one thread, and a typed shell around the async sandbox."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from atoll.files.sync import SyncFiles

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import TracebackType

    from atoll.policy import Capability, Isolation
    from atoll.sandbox import BaseSandbox
    from atoll.types import ExecuteResponse, SandboxResult

T = TypeVar("T")


class Portal:
    """An event loop in a daemon thread that blocking callers hand coroutines to."""

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _shared: ClassVar[Portal | None] = None

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="atoll-loop", daemon=True)
        self._thread.start()

    @classmethod
    def shared(cls) -> Portal:
        """The one of this process; a fork gets one of its own."""
        with cls._lock:
            if cls._shared is None or cls._shared.owner != os.getpid():
                cls._shared = cls()
            return cls._shared

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` there and wait for it here. If we are interrupted, so is it."""
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
        """Run `work` there for a caller in another loop, who is not held up; cancelled with him."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


class _Call(Generic[T]):
    """A coroutine on its way to the loop and back: one lock, which wakes whoever waits."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._waiting = threading.Lock()
        self._waiting.acquire()

    def start(self) -> None:
        """In the loop's thread."""
        self._task = asyncio.get_running_loop().create_task(self._work)
        self._task.add_done_callback(lambda _: self._waiting.release())

    def cancel(self) -> None:
        """In the loop's thread, after `start`."""
        assert self._task is not None
        self._task.cancel()

    def wait(self) -> None:
        """In the caller's thread, until it is done."""
        self._waiting.acquire()

    def result(self) -> T:
        """What it returned or raised."""
        assert self._task is not None
        return self._task.result()


class SyncSandbox:
    """A sandbox for blocking code: every method of Sandbox, with the same arguments."""

    def __init__(self, box: BaseSandbox) -> None:
        self._box = box
        self._portal = Portal.shared()

    @property
    def inner(self) -> BaseSandbox:
        """The async sandbox, whose calls belong into the portal's loop."""
        return self._box

    @property
    def portal(self) -> Portal:
        """Where the async sandbox lives."""
        return self._portal

    @property
    def backend(self) -> str:
        """The backend's name."""
        return self._box.backend

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What the backend can do."""
        return self._box.capabilities

    @property
    def isolation(self) -> Isolation:
        """How strongly the guest is kept in."""
        return self._box.isolation

    def initialize(self, context: Any = None) -> None:
        """Start afresh, with `context` as a variable of the guest."""
        self._portal.run(self._box.initialize(context))

    def execute(
        self, code: str, *, timeout_ms: float | None = None, key: str | None = None
    ) -> SandboxResult:
        """Run a cell; variables live on. With a `key` that was used before: its result again."""
        return self._portal.run(self._box.execute(code, timeout_ms=timeout_ms, key=key))

    def shell(self, command: str, *, timeout_ms: float | None = None) -> ExecuteResponse:
        """Run a shell command in the working folder, in the session's own walls and limits."""
        return self._portal.run(self._box.shell(command, timeout_ms=timeout_ms))

    def validate_code(self, code: str) -> bool:
        """Whether the code compiles. Nothing of it runs."""
        return self._portal.run(self._box.validate_code(code))

    def get_variable(self, name: str, default: Any = None) -> Any:
        """A guest variable as a plain value; `default` if there is none of that name."""
        return self._portal.run(self._box.get_variable(name, default))

    def cancel(self) -> None:
        """Interrupt what runs, from another thread; nothing happens if nothing does."""
        self._portal.run(self._box.cancel())

    @property
    def files(self) -> SyncFiles:
        """The guest's files, from outside: list, read, write, edit, search, upload, download."""
        return SyncFiles(self._box.files, self._portal.run)

    def fork(self) -> SyncSandbox:
        """A live clone with all that is in it, files too; each goes its own way from here."""
        return SyncSandbox(self._portal.run(self._box.fork()))

    def checkpoint(self) -> str:
        """Keep the session as it is now; the mark to roll back to."""
        return self._portal.run(self._box.checkpoint())

    def rollback(self, mark: str) -> None:
        """Be again as at the mark, which stays good."""
        self._portal.run(self._box.rollback(mark))

    def branches(self) -> tuple[str, ...]:
        """The marks that are kept, oldest first."""
        return self._portal.run(self._box.branches())

    def save(self) -> bytes:
        """Variables and files as bytes for create_sandbox(state=...), here or elsewhere."""
        return self._portal.run(self._box.save())

    def destroy(self) -> None:
        """Let go of everything. Calling it twice is harmless."""
        self._portal.run(self._box.destroy())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.destroy()
