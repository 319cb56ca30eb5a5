"""A process beside a session's cells, as its caller has it: async, and for blocking code.

Each method is a request (see verbs), so a handle is the same wherever the process runs.
"""

from __future__ import annotations

import base64
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypedDict

from atoll.errors import ConfigError, ProcessError
from atoll.files.base import blocking
from atoll.policy import check_keys, check_positive
from atoll.sandbox import command as commands
from atoll.sandbox import verbs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from typing import Any, Self

    from atoll.files.base import Runner
    from atoll.sandbox.base import BaseSandbox
    from atoll.types import ProcessInfo, ProcessOutput

Stream = Literal["stdout", "stderr"]
PtySize = tuple[int, int]
DEFAULT_SIZE = (24, 80)
MAX_SIDE = 0xFFFF
WAIT_MS = 10_000.0
"""For how long one request waits; then it is sent again."""
MAX_ENDED = 32
"""Processes of a session that have ended and are still known."""
SIGKILL = 9
WRITE_BYTES = 1 << 18
"""Input in one request."""


class StartOptions(TypedDict, total=False):
    """What `start` takes beside the command."""

    cwd: str | None
    """The folder to start in, absolute or below the working folder; unset: the working folder."""
    env: Mapping[str, str] | None
    """Environment variables beside those that the session started with."""
    stdin: bool
    """Whether it gets a pipe for its input (the default); else its input is empty."""
    pty: bool | PtySize
    """Whether it gets a terminal instead of pipes, of 24 rows and 80 columns or of this size."""


def start_request(command: commands.Command, options: StartOptions) -> verbs.Start:
    """Return the request for a process as its caller describes it; ConfigError if it cannot be."""
    check_keys("option of start", options, ("cwd", "env", "stdin", "pty"))
    place = commands.CommandOptions(cwd=options.get("cwd"), env=options.get("env"))
    params, size = commands.to_params(command, place), _size(options.get("pty", False))
    return verbs.Start(
        command=params.get("command"),
        argv=params.get("argv"),
        cwd=params.get("cwd"),
        env=params.get("env"),
        stdin=bool(options.get("stdin", True)),
        pty=None if size is None else list(size),
    )


def _size(pty: object) -> PtySize | None:
    if isinstance(pty, bool):
        return DEFAULT_SIZE if pty else None
    if isinstance(pty, Sequence) and len(pty) == 2:
        return check_size(*pty)
    raise ConfigError(f"pty is True, False or (rows, columns), not {pty!r:.60}")


def check_size(rows: object, columns: object) -> PtySize:
    """Return the size of a terminal; ConfigError if there can be none of that size."""
    for side in (rows, columns):
        if not isinstance(side, int) or isinstance(side, bool) or not 0 <= side <= MAX_SIDE:
            raise ConfigError(f"a terminal has 0 to {MAX_SIDE} rows and columns, not {side!r:.60}")
    return int(str(rows)), int(str(columns))


def signal_number(given: int | str) -> int:
    """Return the number of a signal; ConfigError if there is none of that number or name."""
    try:
        return int(signal.Signals[given] if isinstance(given, str) else signal.Signals(given))
    except (KeyError, ValueError):
        raise ConfigError(f"no signal {given!r:.50}: use a number, or a name as SIGINT") from None


def no_process(ident: str) -> ProcessError:
    """Return the error for a process that is not known."""
    return ProcessError(
        f"there is no process {ident!r:.40}: it was never started, it was forgotten "
        f"({MAX_ENDED} that have ended are known), or its session was started afresh"
    )


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """Output of a process: its stream, and bytes as they were written."""

    stream: Stream
    data: bytes


class Process:
    """A process that runs beside the cells of a session, and ends with it at the latest.

        server = await box.start("npm run dev", pty=True)
        async for piece in server.output():
            print(piece.data)

    The last 512 KiB of each stream are kept. Output that is read waits for its reader; output that
    is not read for a second does not, and the oldest is dropped.
    """

    def __init__(self, box: BaseSandbox, info: ProcessInfo) -> None:
        self._box, self.info = box, info
        self._at: dict[str, int] = {"stdout": 0, "stderr": 0}
        self._dropped = 0

    @property
    def id(self) -> str:
        """Its name in its session."""
        return self.info.id

    @property
    def pid(self) -> int:
        """Its pid in the sandbox."""
        return self.info.pid

    @property
    def dropped(self) -> int:
        """How many bytes of output this handle was too late for."""
        return self._dropped

    async def read(self, stream: Stream = "stdout", *, timeout_ms: float | None = None) -> bytes:
        """Return the next output, as soon as there is some; no bytes at the end.

        A terminal has one stream, stdout. TimeoutError if nothing comes in time.
        """
        if stream not in self._at:
            raise ConfigError(f"stream is 'stdout' or 'stderr', not {stream!r:.60}")
        async for piece in self._pieces((stream,), timeout_ms):
            return piece.data
        return b""

    async def poll(self, *, timeout_ms: float = 0) -> ProcessOutput:
        """Return the next output of both streams, and how it is; wait for it, 10 s at most."""
        return await self._read(("stdout", "stderr"), max(0.0, min(WAIT_MS, timeout_ms)))

    async def output(self) -> AsyncIterator[OutputPiece]:
        """Yield what it prints on both streams, as it comes, until it has ended."""
        async for piece in self._pieces(("stdout", "stderr"), None):
            yield piece

    async def _pieces(
        self, streams: tuple[Stream, ...], timeout_ms: float | None
    ) -> AsyncIterator[OutputPiece]:
        check_positive("timeout_ms", timeout_ms)
        until = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        while True:
            wait = WAIT_MS if until is None else (until - time.monotonic()) * 1000
            output = await self._read(streams, max(0.0, min(WAIT_MS, wait)))
            for stream in streams:
                if data := getattr(output, stream):
                    yield OutputPiece(stream, data)
            if output.stdout or output.stderr:
                continue
            if not output.info.running:
                return
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"no output of process {self.id} within {timeout_ms:.0f} ms")

    async def _read(self, streams: tuple[Stream, ...], wait_ms: float) -> ProcessOutput:
        at = {name: self._at[name] for name in streams}
        output = await self._box.ask_process(
            verbs.ReadProcess(process=self.id, wait_ms=wait_ms, **at)
        )
        self.info = output.info
        for name in streams:
            end = getattr(output, f"{name}_end")
            self._dropped += end - len(getattr(output, name)) - at[name]
            self._at[name] = end
        return output

    async def skip_to(self, offset: int | None = None) -> None:
        """Read on from this byte of each stream; None: leave out what was printed so far."""
        if offset is not None:
            self._at = dict.fromkeys(self._at, offset)
            return
        while (found := await self.poll()).stdout or found.stderr:
            pass

    async def write(self, data: bytes | str, *, end: bool = False) -> None:
        """Write to its input, and close that with `end`. Waits until the process takes it."""
        raw = data.encode() if isinstance(data, str) else bytes(data)
        view = memoryview(raw)
        while view or end:
            piece = view[:WRITE_BYTES]
            last = end and len(piece) == len(view)
            text = base64.b64encode(piece).decode("ascii")
            request = verbs.WriteProcess(process=self.id, data=text, end=last, wait_ms=WAIT_MS)
            written = await self._box.ask_process(request)
            view = view[written:]
            if last and not view:
                return

    async def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal."""
        size = check_size(rows, columns)
        await self._box.ask_process(verbs.ResizeProcess(process=self.id, size=list(size)))

    async def signal(self, number: int | str) -> None:
        """Send a signal, such as "SIGINT", to it and to its process group."""
        request = verbs.SignalProcess(process=self.id, signal=signal_number(number))
        await self._box.ask_process(request)

    async def kill(self) -> None:
        """Send SIGKILL to it and to its process group."""
        await self.signal(9)  # Windows, where a client may be, has no such name

    async def wait(self, *, timeout_ms: float | None = None) -> ProcessInfo:
        """Wait until it has ended; return how. TimeoutError if it still runs after that time."""
        check_positive("timeout_ms", timeout_ms)
        until = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        while self.info.running:
            wait = WAIT_MS if until is None else (until - time.monotonic()) * 1000
            if wait <= 0:
                raise TimeoutError(f"process {self.id} still runs after {timeout_ms:.0f} ms")
            await self._read((), min(WAIT_MS, wait))
        return self.info

    def __repr__(self) -> str:
        state = "running" if self.info.running else f"ended with {self.info.exit_code}"
        return f"<Process {self.id}: {self.info.shown:.60}, {state}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Kill it."""
        if self.info.running:
            await self.kill()


class SyncProcess:
    """A process beside a session's cells, for blocking code."""

    def __init__(self, process: Process, run: Runner) -> None:
        self._inner, self._run = process, run

    @property
    def info(self) -> ProcessInfo:
        """Its state at the last call."""
        return self._inner.info

    @property
    def id(self) -> str:
        """Its name in its session."""
        return self._inner.id

    @property
    def pid(self) -> int:
        """Its pid in the sandbox."""
        return self._inner.pid

    @property
    def dropped(self) -> int:
        """How many bytes of output this handle was too late for."""
        return self._inner.dropped

    read = blocking(Process.read)
    poll = blocking(Process.poll)
    skip_to = blocking(Process.skip_to)
    write = blocking(Process.write)
    resize = blocking(Process.resize)
    signal = blocking(Process.signal)
    kill = blocking(Process.kill)
    wait = blocking(Process.wait)

    def output(self) -> Iterator[OutputPiece]:
        """Yield what it prints on both streams, as it comes, until it has ended."""
        pieces = self._inner.output()
        while (piece := self._run(_next(pieces))) is not None:
            yield piece

    def __repr__(self) -> str:
        return repr(self._inner)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        """Kill it."""
        if self.info.running:
            self.kill()


async def _next(pieces: AsyncIterator[Any]) -> Any:
    return await anext(pieces, None)
