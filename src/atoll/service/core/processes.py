"""Processes of a session beside its cells: a helper in the guest starts them, files carry output.

SECURITY: the helper is guest code like any other, and what it tells is the guest's word. The host
only reads files and writes to a FIFO below the guest's own folder (`files.live`).
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import contextlib
import time
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from atoll.service import clock
from atoll.service.http.problems import Problem, encode, not_found
from atoll.service.http.streams import KEEPALIVE, event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from atoll.files.live import FileReader
    from atoll.service.access.admission import Holding
    from atoll.service.core.tenant_session import HostedSession
    from atoll.service.http.streams import Event

TMP = "/tmp"  # noqa: S108 - the guest's own
PLACE = f"{TMP}/.atoll-processes"
"""Where the helper and the output of processes are: a saved state does not hold it."""
MAX_PROCESSES = 64
MAX_KNOWN = 256
"""Processes of a session that are known, those that have ended included."""
MAX_COMMAND_BYTES = 1 << 20
MAX_INPUT = 64 << 10
START_SECONDS = 10.0
PIECE = 1 << 18
_SMALL = 1 << 16
_STREAMS = ("out", "err")
_REQUESTS = f"{PLACE}/requests"
_GONE = "the process is gone: the session was started afresh, or went on on another machine"


_Number = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]


class Report(msgspec.Struct, kw_only=True):
    """What the guest's helper tells of a process: that it runs, or how it ended.

    SECURITY: the guest may write anything into the file; whatever is not of this shape is refused.
    """

    pid: _Number | None = None
    exit_code: _Number | None = None
    signal: _Number | None = None
    error: str | None = None


_UNREADABLE = Report(error="the guest reports nothing that can be read")


class ProcessInfo(msgspec.Struct, kw_only=True):
    """A process as the session's tenant sees it."""

    id: str
    pid: int | None
    command: str | list[str]
    started_at: float
    running: bool
    exit_code: int | None
    signal: int | None
    error: str | None


class GuestProcess:
    """One process, as the service knows it."""

    def __init__(self, number: int, command: str | list[str]) -> None:
        self.number, self.command, self.started = number, command, clock.now()
        self.pid: int | None = None
        self.has_terminal = False
        self.held: Holding | None = None
        """What is held of it as long as it is known."""
        self.end: Report | None = None

    def describe(self) -> ProcessInfo:
        """Return what the session's tenant may know."""
        end = self.end or Report()
        return ProcessInfo(
            id=str(self.number),
            pid=self.pid,
            command=self.command,
            started_at=self.started,
            running=self.end is None,
            exit_code=end.exit_code,
            signal=end.signal,
            error=end.error,
        )


class Processes:
    """The processes of one session."""

    def __init__(self, hosted: HostedSession) -> None:
        self._hosted = hosted
        self._known: dict[int, GuestProcess] = {}
        self._next = 1
        self._starting = asyncio.Lock()

    def describe(self) -> list[ProcessInfo]:
        """Return what is known of each."""
        return [process.describe() for process in self._known.values()]

    def get(self, ident: str) -> GuestProcess:
        """Return a process by its id; 404."""
        process = self._known.get(int(ident)) if ident.isdecimal() and len(ident) < 9 else None
        if process is None:
            raise not_found("process")
        return process

    async def running(self) -> list[GuestProcess]:
        """Return those that have not ended, as the guest reports now."""
        for process in list(self._known.values()):
            await self.look(process)
        return [process for process in self._known.values() if process.end is None]

    async def forget_ended(self) -> bool:
        """Remove what processes left, if none runs; return whether none does.

        It would keep the session from being saved as a whole.
        """
        if self._known and await self.running():
            return False
        if self._known:
            await self._hosted.files.delete(PLACE, recursive=True)
            self._known.clear()
        return True

    async def start(self, command: str | list[str], **options: Any) -> GuestProcess:
        """Start a process; 422 if it cannot be."""
        async with self._starting:
            await self._ensure_helper()
            running = sum(known.end is None for known in self._known.values())
            if running >= MAX_PROCESSES:
                raise Problem(429, "rate_limited", f"{MAX_PROCESSES} processes run", retry_after=1)
            size = len(encode([command, options]))
            if size > MAX_COMMAND_BYTES:
                text = f"a command with its environment has at most {MAX_COMMAND_BYTES:,} bytes"
                raise Problem(413, "too_large", f"{text}, not {size:,}: put data into a file")
            process = GuestProcess(self._next, command)
            process.held = self._hosted.admit(size, "the command of a process")
            process.has_terminal = "pty" in options
            self._next += 1
        await self._send(process, "start", command=command, **options)
        self._known[process.number] = process
        try:
            await self._await_start(process)
        except BaseException:
            self._known.pop(process.number, None)
            raise
        self._forget_oldest()
        return process

    def _forget_oldest(self) -> None:
        """Forget the processes that ended first, of more than may be known."""
        ended = [number for number, known in self._known.items() if known.end is not None]
        for number in ended[: max(0, len(self._known) - MAX_KNOWN)]:
            del self._known[number]

    async def _await_start(self, process: GuestProcess) -> None:
        """Wait until the guest tells that it runs; 422 if it does not."""
        until = time.monotonic() + START_SECONDS
        async with self._changes() as changes:
            while process.pid is None and process.end is None:
                await self.look(process)
                if process.pid is None and process.end is None:
                    if time.monotonic() > until:
                        raise Problem(422, "process", "the process did not start in time")
                    await anext(changes)
        if process.pid is None:
            why = process.end.error if process.end is not None else None
            raise Problem(422, "process", why or "it did not start")

    async def write(self, process: GuestProcess, data: bytes, *, end: bool) -> None:
        """Write to its standard input, and close that at the `end`."""
        for at in range(0, max(1, len(data)), MAX_INPUT):
            piece = data[at : at + MAX_INPUT]
            last = at + MAX_INPUT >= len(data)
            text = base64.b64encode(piece).decode()
            await self._send(process, "input", data=text, end=end and last)

    async def resize(self, process: GuestProcess, size: dict[str, int]) -> None:
        """Tell a process's terminal how many `rows` and `cols` it has."""
        await self._send(process, "resize", pty=size)

    async def signal(self, process: GuestProcess, number: int) -> None:
        """Send a signal to it and to all that it started."""
        await self._send(process, "signal", signal=number)

    async def look(self, process: GuestProcess) -> None:
        """Find out whether it has started, and whether it has ended."""
        # The end first: the pid was reported before it. Read the other way round, a process that
        # starts and ends between the two would seem to have ended without a start.
        end = process.end or await self._report(process, "end")
        if process.pid is None:
            started = await self._report(process, "pid")
            process.pid = None if started is None else started.pid
        elif end is None and not await self._is_there(process):
            end = Report(error=_GONE)
        process.end = end

    async def events(
        self, process: GuestProcess, out: int, err: int, pause: float
    ) -> AsyncIterator[list[Event]]:
        """Yield what it prints from these offsets on, until it has ended."""
        at = {"out": out, "err": err}
        decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in _STREAMS}
        yield [event("started", pid=process.pid, id=str(process.number))]
        async with self._changes(pause) as changes:
            while True:
                await self.look(process)
                ended = process.end is not None
                printed = []
                for name in _STREAMS:
                    data = await self._read(process, name, at[name])
                    at[name] += len(data)
                    text = decoders[name].decode(data)
                    printed += [event(f"std{name}", text=text, offset=at[name])] if text else []
                if printed:
                    yield printed
                elif ended:
                    yield [event("exited", **msgspec.structs.asdict(process.describe()))]
                    return
                elif not await anext(changes):
                    yield [KEEPALIVE]

    async def _read(self, process: GuestProcess, name: str, at: int) -> bytes:
        file = await self._open(process, name)
        if file is None:
            return b""
        try:
            return await file.read(at, PIECE)
        finally:
            file.close()

    async def _report(self, process: GuestProcess, name: str) -> Report | None:
        file = await self._open(process, name)
        if file is None:
            return None
        try:
            return msgspec.json.decode(await file.read(0, _SMALL), type=Report)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _UNREADABLE
        finally:
            file.close()

    async def _is_there(self, process: GuestProcess) -> bool:
        """Return whether the sandbox is still the one that the process was started in."""
        file = await self._open(process, "pid")
        if file is not None:
            file.close()
        return file is not None

    async def _open(self, process: GuestProcess, name: str) -> FileReader | None:
        path = f"{PLACE}/{process.number}.{name}"
        with contextlib.suppress(OSError, ValueError):
            return await self._hosted.files.open_file(path)
        return None

    async def _ensure_helper(self) -> None:
        """Start the helper if it does not run: after the cell that runs, if there is one."""
        if await self._hosted.files.send(_REQUESTS, b""):
            return
        self._known.clear()
        code = resources.files("atoll.service.core").joinpath("process_helper.py").read_bytes()
        await self._hosted.files.upload([(f"{PLACE}/helper.py", code)])
        # A fork has the files of its parent's processes, which have the same numbers as its own.
        start = (
            f"cd {PLACE} && rm -f requests ready [0-9]*.*; (exec python3 helper.py {PLACE}"
            " </dev/null >/dev/null 2>&1 &); for i in $(seq 200); do [ -e ready ] && break;"
            " sleep 0.02; done"
        )
        async with self._hosted.session.in_turn() as box:
            await box.shell(start, timeout_ms=START_SECONDS * 1000)

    async def _send(self, process: GuestProcess, op: str, **fields: Any) -> None:
        line = encode({"op": op, "n": process.number, **fields}) + b"\n"
        if not await self._hosted.files.send(_REQUESTS, line):
            raise Problem(410, "process", "the session's processes are gone: it was started afresh")

    @contextlib.asynccontextmanager
    async def _changes(self, pause: float = 1.0) -> AsyncIterator[AsyncIterator[list[Any]]]:
        try:
            watch = await self._hosted.files.watch(PLACE)
        except OSError:
            raise Problem(410, "process", _GONE) from None
        with watch:
            yield watch.changes(pause)
