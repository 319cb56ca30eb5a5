"""A command on this machine, from its start until its last process has ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Self

from atoll.errors import SandboxError
from atoll.sandbox.output import OutputCapture
from atoll.shell import supervisor
from atoll.types import ExecuteResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_OUTPUT = 1 << 20
GRACE = 0.2
"""Seconds after the end of bash in which its children's output is still read."""
_PATIENCE = 10.0


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
