"""The blocking API: a typed facade over the async sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Self, Unpack

from atoll.concurrency.portal import Portal
from atoll.files.base import SyncFiles, blocking
from atoll.sandbox.base import NOT_COPIED, BaseSandbox, check_options
from atoll.sandbox.process import SyncProcess
from atoll.text.name_hints import SandboxHints

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.config import Handler
    from atoll.policy import Capability, Isolation
    from atoll.sandbox.base import ExecuteOptions
    from atoll.sandbox.command import Command
    from atoll.sandbox.process import StartOptions
    from atoll.types import SandboxResult

NOT_ASYNC = "this is a sandbox for blocking code"


class SyncSandbox(SandboxHints):
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

    initialize = blocking(BaseSandbox.initialize)

    def execute(
        self,
        code: str,
        *,
        timeout_ms: float | None = None,
        key: str | None = None,
        **options: Unpack[ExecuteOptions],
    ) -> SandboxResult:
        """Run a cell; its variables are kept for the next one.

        `key` makes the call idempotent: a key that was used before returns that call's result.
        `options` are those of ExecuteOptions, each for some backends: stdin, script, inject_setup.
        """
        if not options:
            return self._run(self._inner.execute(code, timeout_ms=timeout_ms, key=key))
        check_options(self.backend, options)
        execute: Any = self._inner.execute
        result: SandboxResult = self._run(execute(code, timeout_ms=timeout_ms, key=key, **options))
        return result

    shell = blocking(BaseSandbox.shell)
    validate_code = blocking(BaseSandbox.validate_code)
    get_variable = blocking(BaseSandbox.get_variable)
    has_variable = blocking(BaseSandbox.has_variable)
    variables = blocking(BaseSandbox.variables)
    set_variable = blocking(BaseSandbox.set_variable)
    add_tool = blocking(BaseSandbox.add_tool)
    remove_tool = blocking(BaseSandbox.remove_tool)
    set_tools = blocking(BaseSandbox.set_tools)
    cancel = blocking(BaseSandbox.cancel)
    checkpoint = blocking(BaseSandbox.checkpoint)
    rollback = blocking(BaseSandbox.rollback)
    branches = blocking(BaseSandbox.branches)
    save = blocking(BaseSandbox.save)
    ports = blocking(BaseSandbox.ports)
    port = blocking(BaseSandbox.port)
    connect = blocking(BaseSandbox.connect)
    commit = blocking(BaseSandbox.commit)
    expose = blocking(BaseSandbox.expose)

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

    def start(self, command: Command, **options: Unpack[StartOptions]) -> SyncProcess:
        """Start a process beside the cells, under the same isolation and limits.

        A list is a program with its arguments, and no shell. `options` are those of StartOptions:
        cwd, env, stdin, pty. It ends with the sandbox. UnsupportedError without PROCESSES.
        """
        return SyncProcess(self._run(self._inner.start(command, **options)), self._run)

    def processes(self) -> list[SyncProcess]:
        """Return the processes that were started, those that have ended last included."""
        return [SyncProcess(process, self._run) for process in self._run(self._inner.processes())]

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

    if not TYPE_CHECKING:  # for a type checker, as for everybody, there is no `async with`

        def __aenter__(self) -> NoReturn:
            raise TypeError(
                f"{NOT_ASYNC}: write `with`, or `async with atoll.aio.create_sandbox()`"
            )

        def __aexit__(self, *_exc: object) -> NoReturn:
            raise TypeError(NOT_ASYNC)

    def __exit__(self, *_exc: object) -> None:
        self.destroy()
