"""The blocking API: one event loop in a thread, and a typed facade over the async sandbox."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, Self, TypeVar, Unpack

from atoll.errors import SandboxLostError
from atoll.files.sync import SyncFiles
from atoll.policy import names_keywords
from atoll.sandbox import NOT_COPIED

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from atoll.command import Command, CommandOptions
    from atoll.config import Handler
    from atoll.policy import Capability, Isolation
    from atoll.sandbox import BaseSandbox, Tools
    from atoll.types import ExecuteResponse, SandboxResult, Variables

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
        self._box = box
        self._portal = Portal.shared()

    @property
    def inner(self) -> BaseSandbox:
        """The async sandbox; call it in the portal's loop only."""
        return self._box

    @property
    def portal(self) -> Portal:
        """The event loop that the async sandbox runs in."""
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
        """How strongly the guest is isolated from the host."""
        return self._box.isolation

    def initialize(self, context: Any = None) -> None:
        """Start the guest with `context` as its variable. A running guest is ended first."""
        self._portal.run(self._box.initialize(context))

    @names_keywords("option of execute")
    def execute(
        self, code: str, *, timeout_ms: float | None = None, key: str | None = None
    ) -> SandboxResult:
        """Run a cell; its variables are kept for the next one.

        `key` makes the call idempotent: a key that was used before returns that call's result.
        """
        return self._portal.run(self._box.execute(code, timeout_ms=timeout_ms, key=key))

    def shell(
        self,
        command: Command,
        *,
        timeout_ms: float | None = None,
        **options: Unpack[CommandOptions],
    ) -> ExecuteResponse:
        """Run a shell command in the working folder, under the same isolation and limits.

        A list is a program with its arguments, and no shell. `options` are those of
        CommandOptions: cwd, env, stdin, merge_stderr.
        """
        return self._portal.run(self._box.shell(command, timeout_ms=timeout_ms, **options))

    def validate_code(self, code: str) -> bool:
        """Return whether the code compiles, without running it."""
        return self._portal.run(self._box.validate_code(code))

    def get_variable(self, name: str, default: Any = None, *, plain: bool = False) -> Any:
        """Return the value of a guest variable, or `default` if there is no such variable.

        VariableError if the value is too large or of a type that cannot be sent; the message says
        what to do. With `plain`, arrays and data frames arrive as lists and dicts, and an object
        that cannot be sent as an Opaque.
        """
        return self._portal.run(self._box.get_variable(name, default, plain=plain))

    def has_variable(self, name: str) -> bool:
        """Return whether the guest has a variable of that name, also if its value is None."""
        return self._portal.run(self._box.has_variable(name))

    def variables(self, *, hidden: bool = False) -> Variables:
        """List the guest's variables with type and size; `hidden` adds names with an underscore."""
        return self._portal.run(self._box.variables(hidden=hidden))

    def set_variable(self, name: str, value: Any) -> None:
        """Set a guest variable: plain data, dates, numpy arrays, pandas frames.

        VariableError if the value cannot be sent; the message says what to do.
        """
        self._portal.run(self._box.set_variable(name, value))

    @property
    def tools(self) -> Mapping[str, Handler]:
        """The host functions that guest code may call now, by name."""
        return self._box.tools

    def add_tool(self, tool: Handler, *, name: str | None = None) -> None:
        """Let guest code call a function from now on; one of the same name is replaced."""
        self._portal.run(self._box.add_tool(tool, name=name))

    def remove_tool(self, name: str) -> None:
        """Take a tool from guest code; ConfigError if there is none of that name."""
        self._portal.run(self._box.remove_tool(name))

    def set_tools(self, tools: Tools) -> None:
        """Let guest code call these functions and no others."""
        self._portal.run(self._box.set_tools(tools))

    def cancel(self) -> None:
        """Interrupt the running cell or command, from another thread. Does nothing if none runs."""
        self._portal.run(self._box.cancel())

    @property
    def files(self) -> SyncFiles:
        """The guest's files: list, read, write, edit, search, move, delete, upload, download."""
        return SyncFiles(self._box.files, self._portal.run)

    def fork(self) -> SyncSandbox:
        """Return a live clone with the same variables and files; the two are independent."""
        return SyncSandbox(self._portal.run(self._box.fork()))

    def checkpoint(self) -> str:
        """Keep the session's present state, and return the mark to roll back to."""
        return self._portal.run(self._box.checkpoint())

    def rollback(self, mark: str) -> None:
        """Restore the session to the checkpoint; the checkpoint stays usable."""
        self._portal.run(self._box.rollback(mark))

    def branches(self) -> tuple[str, ...]:
        """Return the marks of the checkpoints that are kept, oldest first."""
        return self._portal.run(self._box.branches())

    def save(self) -> bytes:
        """Return variables and files as bytes for create_sandbox(state=...), on any machine."""
        return self._portal.run(self._box.save())

    def destroy(self) -> None:
        """End the guest and free everything it used. Calling it again does nothing.

        Nothing happens in a forked process: the sandbox is its parent's.
        """
        if not self._portal.forked:
            self._portal.run(self._box.destroy())

    def __repr__(self) -> str:
        return repr(self._box)

    def __reduce__(self) -> NoReturn:
        raise TypeError(NOT_COPIED)  # by copy and deepcopy too

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.destroy()
