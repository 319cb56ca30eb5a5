"""Handlers of what happens beside cells: processes of a session, and changes of its files."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from msgspec import Struct

from atoll.service.core.processes import ProcessInfo
from atoll.service.http import bodies
from atoll.service.http.problems import Problem
from atoll.service.http.requests import EventResponse
from atoll.service.http.streams import KEEPALIVE, event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from atoll.files.live import FolderWatch
    from atoll.service.core.processes import GuestProcess, Processes
    from atoll.service.core.tenant_session import HostedSession
    from atoll.service.http.requests import ApiRequest
    from atoll.service.http.streams import Event

MAX_ARGUMENTS = 1_000


class NewProcess(bodies.Body, kw_only=True):
    """POST /sessions/{id}/processes: a line for bash, or a program with its arguments."""

    command: str | list[str]
    cwd: str | None = None
    env: dict[str, str] | None = None
    stdin: bool = False


class Signal(bodies.Body, kw_only=True):
    """POST /sessions/{id}/processes/{id}/signal: a number, or a name such as SIGTERM."""

    signal: int | str = "SIGTERM"


class ProcessList(Struct):
    """The processes of a session."""

    items: list[ProcessInfo]


async def start(call: ApiRequest) -> ProcessInfo | EventResponse:
    """Start a process beside the session's cells; its events are streamed if they are asked for."""
    given = await call.json(NewProcess)
    parts = len(given.command) if isinstance(given.command, list) else 1
    if not given.command or parts > MAX_ARGUMENTS:
        raise Problem(400, "invalid", f"command has from 1 to {MAX_ARGUMENTS} parts")
    hosted = call.session
    call.service.quotas.require_cpu(call.principal)
    options = {"cwd": given.cwd, "env": given.env or {}, "stdin": given.stdin}
    process = await hosted.processes.start(given.command, **options)
    if call.wants_events:
        return _stream(call, hosted.processes, process)
    return process.describe()


async def list_processes(call: ApiRequest) -> ProcessList:
    """List the processes of a session."""
    return ProcessList(call.session.processes.describe())


async def show(call: ApiRequest) -> ProcessInfo:
    """Return what is known of a process."""
    processes, process = _process(call)
    await processes.look(process)
    return process.describe()


async def events(call: ApiRequest) -> EventResponse:
    """Stream what a process prints, from the bytes `out` and `err` on, until it ends."""
    return _stream(call, *_process(call))


async def write(call: ApiRequest) -> None:
    """Write the body to a process's standard input; with `end=1`, close that."""
    processes, process = _process(call)
    data = await call.body()
    await processes.write(process, data, end=call.flag("end"))


async def send_signal(call: ApiRequest) -> None:
    """Send a signal to a process and all that it started."""
    processes, process = _process(call)
    await processes.signal(process, _number((await call.json(Signal)).signal))


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


def _stream(call: ApiRequest, processes: Processes, process: GuestProcess) -> EventResponse:
    pause = call.service.settings.keepalive_seconds
    out, err = call.number("out", 0), call.number("err", 0)
    events = processes.events(process, out, err, pause)
    return EventResponse(call, events, session=call.session.id)


def _number(given: int | str) -> int:
    try:
        return int(signal.Signals[given] if isinstance(given, str) else signal.Signals(given))
    except (KeyError, ValueError):
        raise Problem(400, "invalid", f"no signal {given!r:.50}") from None


def _process(call: ApiRequest) -> tuple[Processes, GuestProcess]:
    processes = call.session.processes
    return processes, processes.get(call.path["process"])
