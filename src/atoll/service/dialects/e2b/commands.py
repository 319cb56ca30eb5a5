"""Handlers of a sandbox's processes: envd's Process over RPC."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import signal
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from atoll.errors import ProcessError
from atoll.sandbox.process import StartOptions
from atoll.service.api.processes import MAX_ARGUMENTS
from atoll.service.core.processes import Offsets
from atoll.service.dialects.e2b import wire
from atoll.service.dialects.e2b.dialect import GONE, ProcessConfig
from atoll.service.dialects.e2b.filing import absolute
from atoll.service.http.problems import Problem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from atoll.service.core.tenant_session import HostedSession
    from atoll.service.http.requests import ApiRequest
    from atoll.service.http.streams import Event
    from atoll.types import ProcessInfo, ProcessOutput

MAX_KNOWN = 256
"""Commands of a sandbox whose words are kept for a listing."""
INPUT_SECONDS = 3_600.0
"""What a stream of input may take."""
KILL_SECONDS = 5.0
"""For how long SIGKILL waits for the end of a process."""
_SIGNALS = {"SIGNAL_SIGKILL": signal.SIGKILL, "SIGNAL_SIGTERM": signal.SIGTERM}


class TerminalSize(Struct):
    """Rows and columns of a terminal."""

    rows: Annotated[int, Meta(ge=0, lt=1 << 16)] = 0
    cols: Annotated[int, Meta(ge=0, lt=1 << 16)] = 0


class Terminal(Struct):
    """A terminal (pty) that a process has in place of pipes."""

    size: TerminalSize


class StartMessage(Struct):
    """Process/Start."""

    process: ProcessConfig
    pty: Terminal | None = None
    stdin: bool | None = None


class Selector(Struct, frozen=True):
    """Which process is meant."""

    pid: int | None = None


class ProcessMessage(Struct):
    """A message that names a process."""

    process: Selector = Selector()


class SignalMessage(ProcessMessage):
    """Process/SendSignal."""

    signal: str = ""


class Input(Struct, frozen=True):
    """Bytes for a process, which are base64 in JSON."""

    stdin: bytes | None = None
    pty: bytes | None = None

    @property
    def data(self) -> bytes:
        """The bytes, for a pipe or for a terminal."""
        return self.stdin or self.pty or b""


class InputMessage(ProcessMessage):
    """Process/SendInput."""

    input: Input = Input()


class InputData(Struct):
    """Bytes of a stream of input."""

    input: Input = Input()


class StreamedInput(Struct):
    """One message of Process/StreamInput: which process is meant, or bytes for it."""

    start: ProcessMessage | None = None
    data: InputData | None = None


class UpdateMessage(ProcessMessage):
    """Process/Update."""

    pty: Terminal | None = None


class RunningProcess(Struct):
    """A process that runs, and how it was started."""

    pid: int
    config: ProcessConfig


class RunningProcesses(Struct):
    """The processes that run."""

    processes: list[RunningProcess]


async def start(call: ApiRequest) -> wire.FrameResponse:
    """Start a process, and stream what it prints; it runs on if the reader leaves."""
    hosted, given = call.service.e2b.sandbox(call), await wire.message(call, StartMessage)
    config = given.process
    if len(config.args or ()) > MAX_ARGUMENTS:
        raise Problem(400, "invalid", f"args is a list of at most {MAX_ARGUMENTS} texts")
    config.args, config.envs = config.args or [], config.envs or {}
    config.cwd = absolute(config.cwd)
    options = StartOptions(cwd=config.cwd, env=config.envs, stdin=given.stdin is True)
    if given.pty is not None:
        options["pty"] = (given.pty.size.rows, given.pty.size.cols)
    call.service.quotas.require_cpu(hosted.principal)
    process = await hosted.processes.start([config.cmd, *config.args], options)
    known = call.service.e2b.facts(hosted).commands
    known[process.pid] = config
    while len(known) > MAX_KNOWN:
        del known[next(iter(known))]
    _end_in_time(call, hosted, process)
    return _stream(call, hosted, process)


async def connect(call: ApiRequest) -> wire.FrameResponse:
    """Stream what a running process has printed, and prints from now on."""
    hosted, given = call.service.e2b.sandbox(call), await wire.message(call, ProcessMessage)
    return _stream(call, hosted, await _process(hosted, given))


async def list_all(call: ApiRequest) -> RunningProcesses:
    """List the processes that run."""
    hosted = call.service.e2b.sandbox(call)
    known = call.service.e2b.facts(hosted).commands
    pids = [run.pid for run in await hosted.processes.running()]
    for pid in set(known).difference(pids):
        del known[pid]
    unknown = ProcessConfig(cmd="?")
    return RunningProcesses([RunningProcess(pid, known.get(pid, unknown)) for pid in pids])


async def send_signal(call: ApiRequest) -> wire.Empty:
    """Send SIGKILL or SIGTERM to a process and all that it started."""
    hosted, given = call.service.e2b.sandbox(call), await call.json(SignalMessage)
    number = _SIGNALS.get(given.signal)
    if number is None:
        raise Problem(400, "invalid", f"signal is one of {', '.join(_SIGNALS)}")
    process = await _process(hosted, given)
    await hosted.processes.signal(process.id, number)
    if number == signal.SIGKILL:  # the client may count on its end
        with contextlib.suppress(ProcessError):
            await hosted.processes.read(process.id, Offsets(None, None), KILL_SECONDS)
    return wire.Empty()


async def send_input(call: ApiRequest) -> wire.Empty:
    """Write to a process's standard input."""
    hosted, given = call.service.e2b.sandbox(call), await call.json(InputMessage)
    await _write(hosted, await _process(hosted, given), given.input.data)
    return wire.Empty()


async def stream_input(call: ApiRequest) -> wire.FrameResponse:
    """Write a stream of messages to a process's standard input."""
    hosted, process = call.service.e2b.sandbox(call), None
    async for given in wire.messages(call, StreamedInput, INPUT_SECONDS):
        if given.start is not None:
            process = await _process(hosted, given.start)
        elif given.data is not None and process is not None:
            await _write(hosted, process, given.data.input.data)
    frames = _once([wire.frame({}), wire.last_frame()])
    return wire.FrameResponse(call, frames)


async def close_input(call: ApiRequest) -> wire.Empty:
    """Close a process's standard input."""
    hosted, given = call.service.e2b.sandbox(call), await call.json(ProcessMessage)
    await hosted.processes.write((await _process(hosted, given)).id, b"", end=True)
    return wire.Empty()


async def update(call: ApiRequest) -> wire.Empty:
    """Change the size of a process's terminal."""
    hosted, given = call.service.e2b.sandbox(call), await call.json(UpdateMessage)
    process = await _process(hosted, given)
    if not process.pty or given.pty is None:
        raise Problem(400, "invalid", "the process has no terminal (pty), or none is given")
    await hosted.processes.resize(process.id, given.pty.size.rows, given.pty.size.cols)
    return wire.Empty()


async def _once(frames: list[bytes]) -> AsyncIterator[list[Event]]:
    yield [(0, "", frame) for frame in frames]


def _stream(call: ApiRequest, hosted: HostedSession, process: ProcessInfo) -> wire.FrameResponse:
    return wire.FrameResponse(call, _frames(hosted, process, _ping(call)), hosted.id)


async def _frames(
    hosted: HostedSession, process: ProcessInfo, pause: float
) -> AsyncIterator[list[Event]]:
    yield [_frame({"start": {"pid": process.pid}})]
    async for output in hosted.processes.follow(process.id, Offsets(), pause):
        yield [_frame(event) for event in _found(output)]
        if hosted.session.frozen:
            yield [(0, "", wire.last_frame(Problem(502, "sandbox", f"{GONE}: it was paused")))]
            return
    yield [(0, "", wire.last_frame())]


def _frame(event: Any) -> Event:
    return (0, "", wire.frame({"event": event}))


def _found(output: ProcessOutput | None) -> list[Any]:
    """Return output, or the end of a process, as E2B's clients read it."""
    if output is None:
        return [{"keepalive": {}}]
    names = ("pty" if output.info.pty else "stdout", "stderr")
    pieces = zip(names, (output.stdout, output.stderr), strict=True)
    shown = [{"data": {name: base64.b64encode(data).decode()}} for name, data in pieces if data]
    if shown:
        return shown
    code = output.info.exit_code
    killed = f"signal: {output.info.signal}" if output.info.signal else ""
    end = {"exitCode": code, "exited": not killed, "status": killed or f"exit status {code}"}
    return [{"end": {**end, **({"error": killed} if killed else {})}}]


async def _write(hosted: HostedSession, process: ProcessInfo, data: bytes) -> None:
    written = await hosted.processes.write(process.id, data, end=False)
    if written < len(data):
        text = f"the process took {written:,} of {len(data):,} bytes: it does not read its input"
        raise Problem(429, "rate_limited", text, retry_after=1)


def _end_in_time(call: ApiRequest, hosted: HostedSession, process: ProcessInfo) -> None:
    """Kill a process when the time is over that its client gave it, also if that has left."""
    text = call.request.headers.get("connect-timeout-ms", "")
    if not text.isdecimal() or len(text) > 10:
        return
    later = asyncio.get_running_loop().call_later

    def over() -> None:
        if hosted.over:
            return
        if hosted.session.frozen:  # a signal would thaw the sandbox: the process waits as it does
            later(1, over)
        else:
            call.service.spawn(hosted.processes.kill(process.id))

    later(min(int(text) / 1000, call.service.settings.max_seconds), over)


def _ping(call: ApiRequest) -> float:
    """Return after how many seconds of silence the client wants a sign of life."""
    text = call.request.headers.get("keepalive-ping-interval", "")
    asked = int(text) if text.isdecimal() and len(text) < 5 else 50
    return float(max(1, min(asked, call.service.settings.keepalive_seconds)))


async def _process(hosted: HostedSession, given: ProcessMessage) -> ProcessInfo:
    pid = given.process.pid
    for process in await hosted.processes.running():
        if process.pid == pid:
            return process
    raise Problem(404, "not_found", f"process with pid {pid!r:.20} not found")
