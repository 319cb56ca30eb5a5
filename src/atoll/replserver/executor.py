"""The client of a REPL server: starts it, watches it, restarts it, and runs code through it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import weakref
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Self

from atoll.concurrency.portal import Portal
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
from atoll.files.base import blocking
from atoll.network import NetworkPolicy
from atoll.policy import ExecutionPolicy
from atoll.replserver import framing, messages
from atoll.replserver.framing import Pipes
from atoll.replserver.messages import REPLRequest, REPLResponse
from atoll.replserver.runner import Runner
from atoll.types import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

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
LEAVE_SECONDS = 2
_FLAGS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "backend": ("--backend", str),
    "python": ("--python", str),
    "min_isolation": ("--min-isolation", str),
    "timeout_ms": ("--timeout", lambda milliseconds: milliseconds / 1000),
}
_LIMITS = {"memory_bytes": "--memory", "disk_bytes": "--disk"}


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
        """Send a request once. If there is not an answer, close; the next call connects again."""
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


class SyncREPLExecutor:
    """REPLExecutor without `await`. Use it in a `with` block, or call close()."""

    def __init__(
        self, config: SandboxConfig | None = None, *, settings: ReplSettings | None = None
    ) -> None:
        self._inner = REPLExecutor(config, settings=settings)
        self._run = Portal.shared().run

    @property
    def server_pid(self) -> int | None:
        """The process of the server, while one of ours runs."""
        return self._inner.server_pid

    start = blocking(REPLExecutor.start)
    execute = blocking(REPLExecutor.execute)
    health_check = blocking(REPLExecutor.health_check)
    close = blocking(REPLExecutor.close)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class ServerConnection:
    """Sends requests to one server and reads its responses; ends a server that it started."""

    def __init__(self, pipes: Pipes, process: subprocess.Popen[bytes] | None = None) -> None:
        self._pipes, self._process = pipes, process
        self._parser = framing.FrameParser("RESPONSE")
        self._events: list[framing.Event] = []
        if process is not None:
            weakref.finalize(self, _end, process)

    @classmethod
    def start(cls, arguments: Sequence[str]) -> ServerConnection:
        """Start a server process and return a connection to it."""
        process = subprocess.Popen(
            [sys.executable, "-m", "atoll.cli.main", "repl-server", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C goes to this process, which ends the server
        )
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin, process.stdout:
            return cls(copied(process.stdout.fileno(), process.stdin.fileno()), process)

    @property
    def pid(self) -> int | None:
        """The server's process id, if it was started here."""
        return None if self._process is None else self._process.pid

    async def wait_ready(self) -> None:
        """Wait until the server is ready; SandboxLostError if it ends before."""
        ready = framing.Noise(framing.READY)
        while await self._next() != ready:
            pass

    async def ask(self, request: REPLRequest) -> REPLResponse:
        """Return the server's response; SandboxLostError if it ends instead."""
        try:
            await self._pipes.write(framing.encode("REQUEST", request.as_json()))
        except OSError:
            raise await self._lost() from None
        while isinstance(event := await self._next(), framing.Noise):
            pass
        if isinstance(event, framing.BrokenFrame):
            raise SandboxLostError(f"the REPL server sent {event.reason}")
        try:
            return REPLResponse.from_json(event.text)
        except (AtollError, LookupError, TypeError, ValueError) as exc:
            raise SandboxLostError(f"the REPL server sent no response: {exc}") from None

    async def close(self) -> None:
        """Close the connection; kill the server if it does not end by itself."""
        self._pipes.close()
        await self._wait()
        self.kill()

    def kill(self) -> None:
        """Kill the server; its sandboxes end with it."""
        self._pipes.close()
        if self._process is not None:
            _end(self._process)

    async def _next(self) -> framing.Event:
        while not self._events:
            try:
                data = await self._pipes.read()
            except OSError:
                data = b""
            if not data:
                raise await self._lost()
            self._events += self._parser.feed(data)
        return self._events.pop(0)

    async def _lost(self) -> SandboxLostError:
        await self._wait()
        if self._process is None:
            return SandboxLostError("the REPL server closed its streams")
        status = _status(self._process.returncode)
        return SandboxLostError(f"the REPL server is gone ({status}); its stderr tells why")

    async def _wait(self) -> None:
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, LEAVE_SECONDS)


def copied(read_fd: int, write_fd: int) -> Pipes:
    """Return pipes over copies of two descriptors; the caller keeps the originals."""
    return Pipes(os.dup(read_fd), os.dup(write_fd))


def _status(code: int | None) -> str:
    if code is None:
        return "it closed its streams"
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def arguments(config: SandboxConfig) -> list[str]:
    """Return the options of a configuration; ConfigError for settings without an option."""
    carried = {*_FLAGS, "policy", "logger", "network", "packages", "allow_source"}
    carried |= {"image", "writable_root", "user", "workdir", "entrypoint"}
    _refuse_others(config, SandboxConfig(), carried)
    _refuse_others(config.policy, ExecutionPolicy(), {*_LIMITS})
    options: list[object] = []
    for name, (flag, write) in _FLAGS.items():
        if (value := getattr(config, name)) is not None:
            options += [flag, write(value)]
    for name, flag in _LIMITS.items():
        options += [flag, getattr(config.policy, name) or "none"]
    for host in _hosts(config.network):
        options += ["--allow-host", host]
    for package in config.packages:
        options += ["--package", package]
    options += ["--allow-source"] if config.allow_source else []
    for name in ("image", "user", "workdir"):
        options += [f"--{name}", value] if (value := getattr(config, name)) else []
    options += ["--writable-root"] if config.writable_root else []
    options += ["--entrypoint"] if config.entrypoint else []
    return [str(part) for part in options]


def _hosts(network: NetworkPolicy | None) -> tuple[str, ...]:
    """Return the hosts of a policy that has no other settings.

    SECURITY: headers must not be on a command line, which every user of the machine can read.
    """
    if network is None:
        return ()
    if network != NetworkPolicy(network.allow) or network.on_request is not None:
        raise ConfigError(
            "a REPL server can be given the hosts of a network policy and no more: leave the rest "
            "out, or set REPL_ENABLED=false"
        )
    return network.allow


def _refuse_others(given: Any, plain: Any, carried: set[str]) -> None:
    for name in (field.name for field in fields(plain)):
        if name not in carried and getattr(given, name) != getattr(plain, name):
            raise ConfigError(
                f"a REPL server cannot be given {name}: leave it out, or set REPL_ENABLED=false"
            )
