"""The processes beside a guest, on the machine of the guest: their output, input and end.

SECURITY: a process is as hostile as the guest. What it prints is read without waiting, and kept up
to a limit; how it ended is what the supervisor saw.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import dataclasses
import fcntl
import itertools
import os
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from atoll.errors import BusyError, ConfigError, ProcessError
from atoll.jail.supervisor.spec import ProcessSpec
from atoll.sandbox import command as commands
from atoll.sandbox import verbs
from atoll.sandbox.process import MAX_ENDED, check_size, no_process, signal_number
from atoll.types import ProcessInfo, ProcessOutput

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from atoll.jail.supervisor.process_lease import ProcessLease

R = TypeVar("R")
MAX_RUNNING = 64
KEPT_BYTES = 1 << 19
"""Output that is kept of each stream."""
PIECE = 1 << 18
MERGED = 1 << 14
"""Up to here pieces become one: a process that prints byte by byte makes few."""
PATIENCE_SECONDS = 1.0
"""For how long output waits for a reader that has read before."""
TERM = "xterm-256color"
END_OF_INPUT = b"\x04"
"""What closes the input of a terminal, at the beginning of a line."""


class OutputBuffer:
    """The last bytes of a stream, and where they are among all that was printed."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self.end = self._read_to = 0
        self._read_at = time.monotonic()  # its first reader gets a while to come

    @property
    def is_full(self) -> bool:
        """Whether the next piece would replace bytes that a reader still may want to have."""
        if self.end - self._read_to <= KEPT_BYTES - PIECE:
            return False
        return time.monotonic() - self._read_at < PATIENCE_SECONDS

    def feed(self, data: bytes) -> None:
        """Keep output; drop the oldest."""
        self.end += len(data)
        self._size += len(data)
        if self._pieces and len(self._pieces[-1]) + len(data) <= MERGED:
            data = self._pieces.pop() + data
        self._pieces.append(data)
        while self._size > KEPT_BYTES:
            self._size -= len(self._pieces.popleft())

    def read(self, at: int) -> bytes:
        """Return the output from an offset on, without the dropped part."""
        self._read_at = time.monotonic()
        wanted = min(self.end - at, self._size)
        if wanted <= 0:
            return b""
        self._read_to = self.end
        pieces: list[bytes] = []
        for piece in reversed(self._pieces):  # a reader wants the last ones, and mostly one
            pieces.append(piece if wanted >= len(piece) else piece[-wanted:])
            wanted -= len(pieces[-1])
            if not wanted:
                break
        return pieces[0] if len(pieces) == 1 else b"".join(reversed(pieces))


class GuestProcess:
    """One process, its output and its input."""

    def __init__(self, started: ProcessLease, info: ProcessInfo) -> None:
        self._loop = asyncio.get_running_loop()
        self._started, self.info = started, info
        fds = list(started.fds)
        self._terminal = fds[0] if info.pty and len(fds) == 1 else None
        self._input = fds[0] if len(fds) in (1, 3) else None
        outputs = fds if self._terminal is not None else fds[-2:]
        self._buffers = [OutputBuffer(), OutputBuffer()]
        self._readers = dict(zip(outputs, self._buffers, strict=False))
        self._paused: set[int] = set()
        self._news: asyncio.Future[None] = self._loop.create_future()
        self._writing = asyncio.Lock()
        for fd in fds:
            os.set_blocking(fd, False)
            with contextlib.suppress(OSError):  # a terminal, or the user's pipes are over a limit
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIECE)
        for fd in outputs:
            self._loop.add_reader(fd, self._on_output, fd)
        started.ended.add_done_callback(self._on_end)

    async def read(self, request: verbs.ReadProcess) -> ProcessOutput:
        """Return output that the reader does not have; wait for some, or the end."""
        asked = (request.stdout, request.stderr)
        until = self._loop.time() + request.wait_ms / 1000
        while True:
            if not self.info.running:
                self._drain()
            output = [
                b"" if at is None else buffer.read(at)
                for at, buffer in zip(asked, self._buffers, strict=True)
            ]
            left = until - self._loop.time()
            if any(output) or not self.info.running or left <= 0:
                break
            await asyncio.wait({self._news}, timeout=min(left, PATIENCE_SECONDS / 2))
        self._resume()
        out, err = self._buffers
        return ProcessOutput(
            info=self.info,
            stdout=output[0],
            stdout_end=out.end if output[0] else asked[0] or 0,
            stderr=output[1],
            stderr_end=err.end if output[1] else asked[1] or 0,
        )

    async def write(self, request: verbs.WriteProcess) -> int:
        """Write to its input; return how many bytes it took in time. Close it at the end."""
        if self._input is None:
            raise ProcessError(f"process {self.info.id} has no input, or it was closed")
        data = _decode(request.data)
        async with self._writing:
            written = await self._write(data, request.wait_ms / 1000)
            if request.end and written == len(data):
                await self._end_input()
        return written

    async def _write(self, data: bytes, seconds: float) -> int:
        written, until = 0, self._loop.time() + seconds
        while written < len(data) and self._input is not None:
            try:
                written += os.write(self._input, memoryview(data)[written:])
            except BlockingIOError:
                left = until - self._loop.time()
                if left <= 0 or not await self._writable(left):
                    break
            except OSError:  # it has closed its end, or has ended
                raise ProcessError(f"process {self.info.id} reads no more input") from None
        return written

    async def _writable(self, seconds: float) -> bool:
        assert self._input is not None
        fd = self._input
        ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_writer(fd, lambda: None if ready.done() else ready.set_result(None))
        try:
            waited: set[asyncio.Future[Any]] = {ready, self._started.ended}
            first = asyncio.FIRST_COMPLETED
            done, _ = await asyncio.wait(waited, timeout=seconds, return_when=first)
            return bool(done)
        finally:
            if self._input is not None:
                self._loop.remove_writer(fd)

    async def _end_input(self) -> None:
        if self._terminal is not None:
            await self._write(END_OF_INPUT, 0)
        else:
            self._close_input()

    def _close_input(self) -> None:
        if self._input is not None:
            self._loop.remove_writer(self._input)
            os.close(self._input)
            self._input = None

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal; ConfigError if it has none."""
        if not self.info.pty:
            raise ConfigError(f"process {self.info.id} has no terminal: start it with pty=True")
        with contextlib.suppress(OSError):  # it has just ended
            self._started.resize(*check_size(rows, columns))

    def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        self._started.signal(signal_number(number))

    def close(self) -> None:
        """Kill it, and close all that leads to it."""
        self._end(None)
        for fd in list(self._readers):
            self._close_reader(fd)

    def _on_output(self, fd: int) -> None:
        """Read a piece, so that other streams have their turn as well."""
        buffer = self._readers[fd]
        if buffer.is_full:
            self._pause(fd)
            return
        try:
            data = os.read(fd, PIECE)
        except BlockingIOError:
            return
        except OSError:  # EIO: no process has the terminal open any more
            data = b""
        if data:
            buffer.feed(data)
        else:
            self._close_reader(fd)
        self._notify()

    def _pause(self, fd: int) -> None:
        """Read nothing more until the reader has read, or was waited for long enough."""
        self._loop.remove_reader(fd)
        if fd in self._paused:
            return
        self._paused.add(fd)
        self._loop.call_later(PATIENCE_SECONDS, self._resume)

    def _resume(self) -> None:
        while self._paused:
            fd = self._paused.pop()
            if fd in self._readers:
                self._loop.add_reader(fd, self._on_output, fd)

    def _close_reader(self, fd: int) -> None:
        del self._readers[fd]
        self._paused.discard(fd)
        self._loop.remove_reader(fd)
        if fd == self._terminal and self._input is not None:
            self._loop.remove_writer(fd)
            self._input = None
        os.close(fd)

    def _on_end(self, ended: asyncio.Future[int]) -> None:
        if not ended.cancelled():
            self._drain()
            self._end(ended.result())

    def _drain(self) -> None:
        """Read the rest of the pipes; children of the process may print more later."""
        for fd in list(self._readers):
            for _ in range(KEPT_BYTES // PIECE):
                if fd in self._readers:
                    self._on_output(fd)

    def _end(self, status: int | None) -> None:
        if self.info.running:
            status = 9 if status is None else status
            killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
            code = 128 + killed if killed is not None else os.WEXITSTATUS(status)
            self.info = dataclasses.replace(self.info, running=False, exit_code=code, signal=killed)
        self._started.close()
        if self._terminal is None:
            self._close_input()
        self._notify()

    def _notify(self) -> None:
        if not self._news.done():
            self._news.set_result(None)
        self._news = self._loop.create_future()


@dataclass(slots=True)
class GuestProcesses:
    """The processes beside one guest."""

    known: dict[str, GuestProcess] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _starting: int = 0
    folder: str | None = None
    """Where they start, if that is not the working folder."""

    @property
    def any_running(self) -> bool:
        """Whether one has not ended."""
        return any(process.info.running for process in self.known.values())

    async def start(
        self,
        request: verbs.Start,
        env: Mapping[str, str],
        start: Callable[[ProcessSpec], Awaitable[ProcessLease]],
    ) -> ProcessInfo:
        """Start a process; BusyError if too many run."""
        running = sum(process.info.running for process in self.known.values())
        if running + self._starting >= MAX_RUNNING:
            raise BusyError(f"{MAX_RUNNING} processes run in this session: end one of them first")
        spec, command = spec_of(request, env)
        spec = dataclasses.replace(spec, folder=spec.folder or self.folder)
        self._starting += 1
        try:
            started = await start(spec)
        finally:
            self._starting -= 1
        info = ProcessInfo(
            id=str(next(self._numbers)),
            pid=started.pid,
            command=command,
            started_at=time.time(),
            pty=spec.terminal is not None,
        )
        self.known[info.id] = GuestProcess(started, info)
        self._forget_ended()
        return info

    async def carry_out(self, request: verbs.ProcessRequest[R]) -> R:
        """Carry out any other request; ProcessError if there is no such process."""
        asked: Any = request
        result: Any = None
        match asked:
            case verbs.ListProcesses():
                result = [process.info for process in self.known.values()]
            case verbs.ReadProcess():
                result = await self._get(asked.process).read(asked)
            case verbs.WriteProcess():
                result = await self._get(asked.process).write(asked)
            case verbs.ResizeProcess(size=[rows, columns]):
                self._get(asked.process).resize(rows, columns)
            case verbs.SignalProcess():
                self._get(asked.process).signal(asked.signal)
            case _:
                raise ConfigError(f"not a request about a process: {request!r:.200}")
        return cast("R", result)

    def _get(self, ident: str) -> GuestProcess:
        if ident not in self.known:
            raise no_process(ident)
        return self.known[ident]

    def _forget_ended(self) -> None:
        ended = [key for key, process in self.known.items() if not process.info.running]
        for key in ended[: max(0, len(ended) - MAX_ENDED)]:
            self.known.pop(key).close()


def spec_of(request: verbs.Start, env: Mapping[str, str]) -> tuple[ProcessSpec, str | list[str]]:
    """Return what to start, and the command as it was given; ConfigError if it cannot be."""
    params = {name: getattr(request, name) for name in ("command", "argv", "cwd", "env")}
    command, options = commands.from_params(params)
    checked = commands.to_params(command, options)
    size = None if request.pty is None else check_size(*request.pty)
    argv = ("", checked["command"]) if "command" in checked else tuple(checked["argv"])
    return (
        ProcessSpec(
            argv=argv,
            env={**env, **({"TERM": TERM} if size else {}), **checked.get("env", {})},
            folder=checked.get("cwd"),
            stdin=request.stdin,
            terminal=size,
        ),
        command if isinstance(command, str) else list(command),
    )


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError("data is not base64") from None
