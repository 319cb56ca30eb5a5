"""The machine itself, for development: commands run as the caller, files are those of a folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import weakref
from typing import TYPE_CHECKING, Any, Self, TypedDict

from atoll.errors import ConfigError, SandboxClosedError, SandboxError
from atoll.files.direct import FolderFiles
from atoll.guest.shared.workspace import Workspace
from atoll.policy import Isolation, check_positive
from atoll.sandbox.output import OutputCapture
from atoll.shell import supervisor
from atoll.shell.fetched_files import FetchedFiles
from atoll.types import ExecuteResponse

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from atoll.files.direct import Folders

TIMEOUT_MS = 30_000
MAX_COMMAND = (128 << 10) - 1
STORING = frozenset({"write", "upload", "mkdir"})
INHERITED = ("PATH", "HOME", "LANG", "TERM", "TZ", "USER", "LOGNAME", "SHELL", "TMPDIR")
MAX_OUTPUT = 1 << 20
GRACE = 0.2
"""Seconds after the end of bash in which its children's output is still read."""
_PATIENCE = 10.0


class LocalSandboxOptions(TypedDict, total=False):
    """The arguments of LocalSandbox, for `LocalSandbox(**options)`."""

    cwd: str | PathLike[str] | None
    timeout: float
    env: Mapping[str, str] | None


class LocalSandbox(FolderFiles):
    """Your own machine, for development: commands run as you, on your files. IT ISOLATES NOTHING.

        async with atoll.aio.LocalSandbox(cwd="project") as box:
            print((await box.execute("make test")).output)

    `execute` runs a command with bash in `cwd`, for up to `timeout` milliseconds; of the
    environment it gets only what a shell needs, and `env`. The file operations stay in `cwd`:
    `/x` means `x` there, and no link leads out. `close` ends what was left in the background.

    A `cwd` that does not exist is looked for again at each use: until it exists, a command returns
    an error with exit code 1, and no file is found.
    """

    def __init__(
        self,
        cwd: str | PathLike[str] | None = None,
        timeout: float = TIMEOUT_MS,
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(self._descriptors)
        _check_timeout(timeout)
        self._timeout, self._env = timeout, _environment(env or {})
        self._cwd = _absolute(cwd)
        self._names: list[str] = []
        """The absolute paths of the folder, once it is open: as given, and without links."""
        self._folder: list[int] = []
        """Its descriptor, once it is open."""
        self._let_go = weakref.finalize(self, _close_all, self._folder)
        with contextlib.suppress(OSError):
            self._open()
        self._id = f"local-{time.time_ns() // 1_000_000}-{secrets.token_hex(6)}"
        self._running: set[Running] = set()

    @property
    def id(self) -> str:
        """A unique name of this sandbox."""
        return self._id

    @property
    def isolation(self) -> Isolation:
        """Always Isolation.NONE."""
        return Isolation.NONE

    async def execute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:  # noqa: ASYNC109 - its end is a result
        """Run a command with bash in the folder; `timeout` in milliseconds.

        A command that takes longer is killed, with all processes that it started: exit code 124.
        If it cannot be started, the output is the reason, and the exit code 1.
        """
        _check_command(command)
        if timeout is not None:
            _check_timeout(timeout)
        self._check_open()
        self._forget_ended()
        try:
            _check_can_start(command)
            return await self._run_command(command, timeout or self._timeout)
        except CommandNotStartedError as exc:
            return ExecuteResponse(output=f"Error: {exc}", exit_code=1, error=str(exc))
        finally:
            self._forget_ended()

    async def _run_command(self, command: str, timeout_ms: float) -> ExecuteResponse:
        running = await Running.start(command, self._cwd, self._env)
        self._running.add(running)
        try:
            return await running.outcome(timeout_ms)
        except BaseException:
            await asyncio.shield(running.end())
            raise

    async def close(self) -> None:
        """Kill what still runs and close the folder. Calling it again does nothing."""
        self._let_go()
        await asyncio.gather(*(running.end() for running in self._running))
        self._forget_ended()

    def __repr__(self) -> str:
        return f"<LocalSandbox {self._id} in {self._cwd!r}: no isolation>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def _ask(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        self._check_open()
        try:
            self._open()
        except OSError as exc:
            return self._ask_nothing(operation, params, exc)
        return await super()._ask(operation, params)

    def _ask_nothing(self, operation: str, params: dict[str, Any], exc: OSError) -> dict[str, Any]:
        """Return the answer to an operation while the folder does not exist."""
        refusal: Exception = exc
        if operation in STORING:
            refusal = ValueError(f"the working folder {self._cwd!r} cannot be used: {exc.strerror}")
        return Workspace(FetchedFiles(fault=exc, refusal=refusal)).run(operation, params)

    def _open(self) -> None:
        """Open the folder, unless it is open; OSError if it cannot be used."""
        if not self._folder:
            self._folder.append(os.open(self._cwd, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
            self._names = list(dict.fromkeys([self._cwd, os.path.realpath(self._cwd)]))

    async def _descriptors(self, changing: bool) -> Folders:  # noqa: FBT001 - as FolderFiles asks
        del changing
        self._check_open()
        self._open()
        return {name: os.dup(self._folder[0]) for name in self._names}

    def _forget_ended(self) -> None:
        """Drop commands that have no process left."""
        self._running -= {command for command in self._running if command.is_over}

    def _check_open(self) -> None:
        if not self._let_go.alive:
            raise SandboxClosedError("the sandbox is closed: make a new LocalSandbox")


def _absolute(cwd: str | PathLike[str] | None) -> str:
    path = os.fspath(cwd) if cwd is not None else os.getcwd()
    if not isinstance(path, str):
        raise ConfigError(f"cwd must be a str or a pathlib path, not {type(cwd).__name__}")
    if "\0" in path:
        raise ConfigError(f"cwd contains a zero byte: {path!r:.200}")
    return os.path.abspath(path)


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    for name, value in extra.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigError(f"env must map str to str, and {name!r} does not")
        if not name or "=" in name or "\0" in name + value:
            raise ConfigError(f"not an environment variable: {name!r}")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in INHERITED or name.startswith("LC_")
    }
    return {**kept, **extra}


def _check_timeout(timeout: float) -> None:
    if timeout is None:
        raise ConfigError("timeout must be a number of milliseconds, not None")
    check_positive("timeout", timeout)


def _check_command(command: str) -> None:
    if not isinstance(command, str):
        raise ConfigError(f"command must be a str, not {type(command).__name__}")


def _check_can_start(command: str) -> None:
    """Raise CommandNotStartedError for a command that the kernel would not take."""
    if "\0" in command:
        raise CommandNotStartedError("the command contains a zero byte")
    size = len(os.fsencode(command))
    if size > MAX_COMMAND:
        text = f"the command has {size:,} bytes, and bash takes {MAX_COMMAND:,}"
        raise CommandNotStartedError(f"{text}: write it to a file, and run that")


class CommandNotStartedError(SandboxError):
    """A command that could not be spawned: bash or the working folder is missing."""


class Running:
    """A command under its supervisor. Its background processes live until `end`."""

    def __init__(self, process: subprocess.Popen[bytes], line: socket.socket) -> None:
        self._process, self._line = process, line
        self._loop = asyncio.get_running_loop()
        self._output, self._control = _Output(), _Control()

    @classmethod
    async def start(cls, command: str, cwd: str, env: Mapping[str, str]) -> Self:
        """Start the command in a session of its own."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = _spawn(command, cwd, env, theirs)
            except BaseException:
                ours.close()
                raise
        running = cls(process, ours)
        try:
            await running._connect()
        except BaseException:
            await asyncio.shield(running.end())
            raise
        return running

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: self._output, self._process.stdout)
        await loop.create_connection(lambda: self._control, sock=self._line)

    async def outcome(self, timeout_ms: float) -> ExecuteResponse:
        """Return the result when bash has ended or the time is over."""
        error = None
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                code = await self._control.ended
        except TimeoutError:
            await self.end()
            code, error = 124, f"the command took longer than {timeout_ms:g} ms and was ended"
        if code is None:
            error = "the command's supervisor was killed"
            self._end_session()
        await self._hung_up()
        if self._control.closed.done():
            await asyncio.to_thread(self._wait)
        text, cut = self._output.take()
        return ExecuteResponse(output=text, exit_code=code, truncated=cut, error=error)

    @property
    def is_over(self) -> bool:
        """Whether all its processes have ended."""
        return self._process.poll() is not None and self._output.closed.done()

    async def end(self) -> None:
        """Kill all its processes."""
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)
        await asyncio.to_thread(self._wait)
        if self._loop is asyncio.get_running_loop():
            await self._hung_up()
        self._close()

    async def _hung_up(self) -> None:
        """Start the time for other processes' output when bash has ended."""
        await asyncio.wait([self._output.closed, self._control.closed], timeout=GRACE)

    def _close(self) -> None:
        if not self._loop.is_closed():
            self._output.close()
            self._control.close()
        if self._loop.is_closed() or not self._output.connected:
            assert self._process.stdout
            self._process.stdout.close()
        self._line.close()

    def _wait(self) -> None:
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._end_session()
            self._process.wait()

    def _end_session(self) -> None:
        """Kill the processes of its session: without a supervisor, others are not found."""
        for pid, _, session in supervisor.processes():
            if session == self._process.pid:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)


def _spawn(
    command: str, cwd: str, env: Mapping[str, str], control: socket.socket
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", supervisor.__file__, command],
            cwd=cwd,
            env=dict(env),
            stdin=control.fileno(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as exc:
        text = f"no command can be started in {cwd}: {exc.strerror}"
        raise CommandNotStartedError(text) from exc


class _Ending(asyncio.Protocol):
    """A protocol that waits until the other end closes the connection."""

    def __init__(self) -> None:
        self._transport: asyncio.BaseTransport | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if not self.closed.done():
            self.closed.set_result(None)

    @property
    def connected(self) -> bool:
        """Whether the connection was made."""
        return self._transport is not None

    def close(self) -> None:
        """Close the connection, if it is open."""
        if self._transport and not self.closed.done():
            self._transport.close()


class _Output(_Ending):
    """Collects output until it is taken, and then reads on, so that writers do not block."""

    def __init__(self) -> None:
        super().__init__()
        self._capture: OutputCapture | None = OutputCapture(
            max_bytes=MAX_OUTPUT, max_chars=MAX_OUTPUT
        )

    def data_received(self, data: bytes) -> None:
        if self._capture:
            self._capture.feed(data)

    def take(self) -> tuple[str, bool]:
        """Return the text, and whether it was cut; later output is dropped."""
        assert self._capture is not None
        capture, self._capture = self._capture, None
        return capture.finish()


class _Control(_Ending):
    """Receives the supervisor's messages."""

    def __init__(self) -> None:
        super().__init__()
        self._text = b""
        self.ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        *lines, self._text = (self._text + data).split(b"\n")
        for word, _, rest in (line.decode().partition(" ") for line in lines):
            if not self.ended.done() and word == "exit":
                self.ended.set_result(int(rest))
            elif not self.ended.done():
                self.ended.set_exception(CommandNotStartedError(rest))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
        super().connection_lost(exc)
