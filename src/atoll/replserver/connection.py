"""The client's connection to one server: to a process that it started, or over given streams."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import weakref
from typing import TYPE_CHECKING

from atoll.errors import AtollError, SandboxLostError
from atoll.replserver import framing
from atoll.replserver.messages import REPLResponse
from atoll.replserver.pipes import Pipes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.replserver.messages import REPLRequest

LEAVE_SECONDS = 2


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
