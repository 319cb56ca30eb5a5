"""Handlers of a session's processes, and of changes of its files."""

from __future__ import annotations

import base64
import codecs
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, structs

from atoll.sandbox.process import StartOptions, signal_number
from atoll.service.core.processes import SHELL, Offsets
from atoll.service.http import bodies
from atoll.service.http.problems import Problem
from atoll.service.http.requests import EventResponse
from atoll.service.http.streams import KEEPALIVE, event
from atoll.types import ProcessInfo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from atoll.files.live import FolderWatch
    from atoll.service.core.processes import Processes
    from atoll.service.core.tenant_session import HostedSession
    from atoll.service.http.requests import ApiRequest
    from atoll.service.http.streams import Event

MAX_ARGUMENTS = 1_000
MAX_WAIT_SECONDS = 30
_STREAMS = ("stdout", "stderr")
Side = Annotated[int, Meta(ge=0, lt=1 << 16)]


class TerminalSize(bodies.Body, kw_only=True):
    """Rows and columns of a terminal."""

    rows: Side = 24
    cols: Side = 80


class NewProcess(bodies.Body, kw_only=True):
    """POST /sessions/{id}/processes: a line for bash, or a program with its arguments.

    Without a command it is a shell.
    """

    command: str | list[str] = SHELL
    cwd: str | None = None
    env: dict[str, str] | None = None
    stdin: bool = False
    pty: TerminalSize | None = None


class Signal(bodies.Body, kw_only=True):
    """POST /sessions/{id}/processes/{id}/signal: a number, or a name such as SIGTERM."""

    signal: int | str = "SIGTERM"


class ProcessFacts(Struct, kw_only=True):
    """A process as the session's tenant sees it."""

    id: str
    pid: int
    command: str | list[str]
    started_at: float
    pty: bool
    running: bool
    exit_code: int | None
    signal: int | None

    @classmethod
    def of(cls, info: ProcessInfo) -> ProcessFacts:
        """Describe a process."""
        return cls(**{name: getattr(info, name) for name in cls.__struct_fields__})


class ProcessList(Struct):
    """The processes of a session."""

    items: list[ProcessFacts]


class Written(Struct):
    """How many bytes of input a process took."""

    written: int


class Output(Struct, kw_only=True):
    """Output from the offsets of a request on; the bytes are base64."""

    process: ProcessFacts
    stdout: bytes
    stdout_end: int
    stderr: bytes
    stderr_end: int


async def start(call: ApiRequest) -> ProcessFacts | EventResponse:
    """Start a process beside the session's cells; its events are streamed if they are asked for."""
    given = await call.json(NewProcess)
    parts = len(given.command) if isinstance(given.command, list) else 1
    if not given.command or parts > MAX_ARGUMENTS:
        raise Problem(400, "invalid", f"command has from 1 to {MAX_ARGUMENTS} parts")
    hosted = call.session
    call.service.quotas.require_cpu(call.principal)
    options = StartOptions(cwd=given.cwd, env=given.env, stdin=given.stdin)
    if given.pty is not None:
        options["pty"] = (given.pty.rows, given.pty.cols)
    info = await hosted.processes.start(given.command, options)
    return _stream(call, info) if call.wants_events else ProcessFacts.of(info)


async def list_processes(call: ApiRequest) -> ProcessList:
    """List the processes of a session."""
    return ProcessList(list(map(ProcessFacts.of, await call.session.processes.known())))


async def show(call: ApiRequest) -> ProcessFacts:
    """Describe a process."""
    return ProcessFacts.of(await _process(call))


async def events(call: ApiRequest) -> EventResponse:
    """Stream what a process prints, from the bytes `out` and `err` on, until it ends."""
    return _stream(call, await _process(call))


async def output(call: ApiRequest) -> Output:
    """Return what a process has printed, from the bytes `out` and `err` on.

    With `wait`, a number of milliseconds, the answer waits for more, or for the end.
    """
    info = await _process(call)
    seconds = min(call.number("wait", 0) / 1000, MAX_WAIT_SECONDS)
    output = await call.session.processes.read(info.id, _offsets(call), seconds)
    return Output(
        process=ProcessFacts.of(output.info),
        stdout=output.stdout,
        stdout_end=output.stdout_end,
        stderr=output.stderr,
        stderr_end=output.stderr_end,
    )


async def write(call: ApiRequest) -> Written:
    """Write the body to a process's standard input; with `end=1`, close that."""
    info, data = await _process(call), await call.body()
    return Written(await call.session.processes.write(info.id, data, end=call.flag("end")))


async def resize(call: ApiRequest) -> None:
    """Change the size of a process's terminal."""
    info, size = await _process(call), await call.json(TerminalSize)
    await call.session.processes.resize(info.id, size.rows, size.cols)


async def send_signal(call: ApiRequest) -> None:
    """Send a signal to a process and its process group."""
    info = await _process(call)
    await call.session.processes.signal(info.id, signal_number((await call.json(Signal)).signal))


async def watch(call: ApiRequest) -> EventResponse:
    """Stream the changes of a folder: created, written, closed, deleted, moved_from, moved_to."""
    hosted, path = call.session, call.query("path") or "."
    try:
        folder = await hosted.files.watch(path, recursive=call.flag("recursive"))
    except (OSError, ValueError):
        raise Problem(404, "file", f"{path!r} is not a folder that can be watched") from None
    return EventResponse(call, _changes(call, hosted, folder), session=hosted.id)


async def _changes(
    call: ApiRequest, hosted: HostedSession, folder: FolderWatch
) -> AsyncIterator[list[Event]]:
    box = hosted.session.box
    with folder:
        yield [event("watching")]
        async for changes in folder.changes(call.service.settings.keepalive_seconds):
            if hosted.session.box is not box or call.service.stopping:
                yield [event("end")]
                return
            yield [event("change", path=c.path, kind=c.kind, is_dir=c.is_dir) for c in changes] or [
                KEEPALIVE
            ]


def _stream(call: ApiRequest, info: ProcessInfo) -> EventResponse:
    hosted, pause = call.session, call.service.settings.keepalive_seconds
    events = _events(hosted.processes, info, _offsets(call), pause)
    return EventResponse(call, events, session=hosted.id)


async def _events(
    processes: Processes, info: ProcessInfo, at: Offsets, pause: float
) -> AsyncIterator[list[Event]]:
    """Yield what a process prints as text; bytes that are not text come as base64 as well."""
    decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in _STREAMS}
    yield [event("started", pid=info.pid, id=info.id)]
    async for output in processes.follow(info.id, at, pause):
        if output is None:
            yield [KEEPALIVE]
            continue
        shown = []
        for name in _STREAMS:
            if data := getattr(output, name):
                text = decoders[name].decode(data)
                raw = {} if "\ufffd" not in text else {"base64": base64.b64encode(data).decode()}
                shown.append(event(name, text=text, offset=getattr(output, f"{name}_end"), **raw))
        if not shown:
            shown = [event("exited", **structs.asdict(ProcessFacts.of(output.info)))]
        yield shown


def _offsets(call: ApiRequest) -> Offsets:
    """Return the query's offsets; `none` means that a stream is not wanted."""
    out, err = (None if call.query(at) == "none" else call.number(at, 0) for at in ("out", "err"))
    return Offsets(out, err)


async def _process(call: ApiRequest) -> ProcessInfo:
    return await call.session.processes.get(call.path["process"])
