"""REPLExecutor: runs code through a server, which it starts, watches and restarts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from atoll.config import ReplSettings, SandboxConfig
from atoll.errors import (
    AtollError,
    ConfigError,
    ExecutionTimeoutError,
    SandboxClosedError,
    SandboxError,
    SandboxLostError,
    SandboxStartError,
    StateError,
)
from atoll.replserver import messages
from atoll.replserver.command import arguments
from atoll.replserver.connection import ServerConnection, copied
from atoll.replserver.messages import REPLRequest
from atoll.replserver.runner import Runner
from atoll.types import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from atoll.replserver.messages import REPLResponse

    class HasFileno(Protocol):
        """A stream over a descriptor."""

        def fileno(self) -> int:
            """The descriptor."""
            ...


ANSWER_GRACE_SECONDS = 30
"""Seconds in addition to the execution: to open a sandbox and to transfer a state."""
_NOTHING_RAN = {
    messages.REFUSED: ConfigError,
    messages.BAD_STATE: StateError,
    messages.FAILED: SandboxError,
}


class REPLExecutor:
    """Runs code through a REPL server; with REPL_ENABLED=false in sandboxes of its own.

    Each execution has a fresh sandbox; pass `state` to keep variables.
    """

    def __init__(
        self, config: SandboxConfig | None = None, *, settings: ReplSettings | None = None
    ) -> None:
        self._config = config or SandboxConfig()
        self._settings = settings or ReplSettings.from_environment()
        self._connect: Callable[[], ServerConnection] = lambda: ServerConnection.start(
            arguments(self._config)
        )
        self._direct = None if self._settings.enabled else Runner(self._config)
        self._turn = asyncio.Lock()
        self._connection: ServerConnection | None = None
        self._closed = False

    @classmethod
    def attach(
        cls,
        output: HasFileno,
        input: HasFileno,  # noqa: A002 - the names of the two ends
        *,
        config: SandboxConfig | None = None,
        settings: ReplSettings | None = None,
    ) -> Self:
        """Return an executor over copies of a running server's stdout and stdin."""
        connections = [ServerConnection(copied(output.fileno(), input.fileno()))]
        used = replace(settings or ReplSettings.from_environment(), enabled=True)
        executor = cls(config, settings=used)

        def connect() -> ServerConnection:
            if not connections:
                raise SandboxClosedError("the streams of the REPL server are closed: attach anew")
            return connections.pop()

        executor._connect = connect
        return executor

    @property
    def server_pid(self) -> int | None:
        """The server's process id, while a server that was started here runs."""
        return None if self._connection is None else self._connection.pid

    async def start(self) -> None:
        """Start the server and wait until it is ready; execute() does so by itself."""
        if self._direct is None:
            async with self._turn:
                await self._ensure()

    async def execute(
        self,
        code: str,
        state: bytes | None = None,
        *,
        capture_state: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - the guest's, not ours
    ) -> REPLResponse:
        """Run code in a fresh sandbox. Its faults are in the response; a timeout raises."""
        limit = self._config.timeout_ms / 1000 if timeout is None else timeout
        request = REPLRequest(code=code, state=state, capture_state=capture_state, timeout=limit)
        if self._direct is not None:
            self._check_open()
            return _judged(await self._direct.run(request))
        async with self._turn:
            return _judged(await self._ask(request, limit + ANSWER_GRACE_SECONDS))

    async def health_check(self) -> bool:
        """Whether code runs within REPL_HEALTH_CHECK_TIMEOUT_SECONDS; a busy server is healthy."""
        if self._turn.locked():
            return True
        limit = self._settings.health_check_seconds
        try:
            async with asyncio.timeout(limit):
                return (await self.execute("pass", timeout=limit)).exit_code == 0
        except (AtollError, TimeoutError):
            return False

    async def close(self) -> None:
        """End the server and what runs in it. Calling it twice is harmless."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _ensure(self) -> ServerConnection:
        self._check_open()
        if self._connection is None:
            self._connection = self._connect()
            await self._wait_ready(self._connection)
        return self._connection

    async def _wait_ready(self, connection: ServerConnection) -> None:
        limit = self._settings.warmup_seconds
        try:
            async with asyncio.timeout(limit):
                await connection.wait_ready()
        except BaseException as exc:
            self._drop(connection)
            if isinstance(exc, TimeoutError):
                reason = f"not ready within {limit:g} s: raise REPL_WARMUP_TIMEOUT_SECONDS"
                raise SandboxStartError("REPL server", reason) from None
            if isinstance(exc, SandboxLostError):
                raise SandboxStartError("REPL server", str(exc)) from None
            raise

    async def _ask(self, request: REPLRequest, patience: float) -> REPLResponse:
        """Send a request once. If there is no answer, close; the next call connects again."""
        connection = await self._ensure()
        try:
            async with asyncio.timeout(patience):
                return await connection.ask(request)
        except BaseException as exc:
            self._drop(connection)
            if isinstance(exc, TimeoutError):
                text = f"the REPL server gave no answer within {patience:g} s and was ended"
                raise ExecutionTimeoutError(text) from None
            raise

    def _drop(self, connection: ServerConnection) -> None:
        self._connection = None
        connection.kill()

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxClosedError("the executor has been closed")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()


def _judged(response: REPLResponse) -> REPLResponse:
    """Return the response; raise an error for a timeout, or if nothing ran."""
    text = response.error or response.kind
    if response.kind == Outcome.TIMEOUT:
        raise ExecutionTimeoutError(text, stdout=response.stdout, stderr=response.stderr)
    if response.kind in _NOTHING_RAN:
        raise _NOTHING_RAN[response.kind](text)
    return response
