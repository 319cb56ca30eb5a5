"""Handlers of a sandbox's processes: envd's Process over RPC."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import signal
from typing import TYPE_CHECKING, Any

from atoll.service.api.processes import MOST_ARGUMENTS
from atoll.service.dialects.e2b import wire
from atoll.service.dialects.e2b.dialect import GONE
from atoll.service.dialects.e2b.paths import absolute
from atoll.service.http.problems import Problem
from atoll.service.http.requests import as_json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.responses import Response

    from atoll.service.core.executions import Event
    from atoll.service.core.processes import GuestProcess
    from atoll.service.core.tenant_session import HostedSession
    from atoll.service.http.requests import Call

MOST_KNOWN = 256
"""Commands of a sandbox whose words are kept for a listing."""
MOST_CELLS = 1 << 16
"""Rows or columns of a terminal, as the kernel counts them."""
INPUT_SECONDS = 3_600.0
"""What a stream of input may take."""
_SIGNALS = {"SIGNAL_SIGKILL": signal.SIGKILL, "SIGNAL_SIGTERM": signal.SIGTERM}


async def start(call: Call) -> Response:
    """Start a process, and stream what it prints; it runs on if the reader leaves."""
    hosted, given = call.service.e2b.sandbox(call), await wire.message(call)
    options: dict[str, Any] = {"stdin": given.get("stdin") is True}
    if given.get("pty"):
        options = {"pty": _size(given)}
    config = given.get("process")
    if not isinstance(config, dict):
        raise Problem(400, "invalid", "process says what to run")
    command = [wire.text_of(config, "cmd"), *_texts(config.get("args") or [])]
    env = config.get("envs") or {}
    if not isinstance(env, dict) or not all(isinstance(one, str) for one in env.values()):
        raise Problem(400, "invalid", "envs has texts only")
    cwd = absolute(wire.text_of(config, "cwd"))
    call.service.quotas.require_cpu(hosted.principal)
    process = await hosted.processes.start(command, cwd=cwd, env=env, **options)
    assert process.pid is not None
    shown = {"cmd": command[0], "args": command[1:], "envs": env, "cwd": cwd}
    known = call.service.e2b.facts(hosted).commands
    known[process.pid] = shown
    while len(known) > MOST_KNOWN:
        del known[next(iter(known))]
    _end_in_time(call, hosted, process)
    return _stream(call, hosted, process)


async def connect(call: Call) -> Response:
    """Stream what a running process has printed, and prints from now on."""
    hosted, given = call.service.e2b.sandbox(call), await wire.message(call)
    return _stream(call, hosted, await _process(hosted, given))


async def list_all(call: Call) -> Response:
    """List the processes that run."""
    hosted = call.service.e2b.sandbox(call)
    known = call.service.e2b.facts(hosted).commands
    running = [one.pid for one in await hosted.processes.running() if one.pid is not None]
    for pid in set(known).difference(running):
        del known[pid]
    rows = [{"pid": pid, "config": known.get(pid, {"cmd": "?"})} for pid in running]
    return as_json({"processes": rows})


async def send_signal(call: Call) -> Response:
    """Send SIGKILL or SIGTERM to a process and all that it started."""
    hosted, given = call.service.e2b.sandbox(call), await call.decoded(wire.parse)
    number = _SIGNALS.get(wire.text_of(given, "signal"))
    if number is None:
        raise Problem(400, "invalid", f"signal is one of {', '.join(_SIGNALS)}")
    await hosted.processes.signal(await _process(hosted, given), number)
    return as_json({})


async def send_input(call: Call) -> Response:
    """Write to a process's standard input."""
    hosted, given = call.service.e2b.sandbox(call), await call.decoded(wire.parse)
    process = await _process(hosted, given)
    await hosted.processes.write(process, _data(given.get("input")), end=False)
    return as_json({})


async def stream_input(call: Call) -> Response:
    """Write a stream of messages to a process's standard input."""
    hosted, process = call.service.e2b.sandbox(call), None
    async for given in wire.messages(call, INPUT_SECONDS):
        if "start" in given:
            process = await _process(hosted, given["start"])
        elif "data" in given and process is not None and isinstance(given["data"], dict):
            await hosted.processes.write(process, _data(given["data"].get("input")), end=False)
    frames = _once([wire.frame({}), wire.last_frame()])
    return wire.FrameResponse(call, frames)


async def close_input(call: Call) -> Response:
    """Close a process's standard input."""
    hosted, given = call.service.e2b.sandbox(call), await call.decoded(wire.parse)
    await hosted.processes.write(await _process(hosted, given), b"", end=True)
    return as_json({})


async def update(call: Call) -> Response:
    """Change the size of a process's terminal."""
    hosted, given = call.service.e2b.sandbox(call), await call.decoded(wire.parse)
    process = await _process(hosted, given)
    if not process.has_terminal:
        raise Problem(400, "invalid", "the process has no terminal (pty)")
    await hosted.processes.resize(process, _size(given))
    return as_json({})


async def _once(frames: list[bytes]) -> AsyncIterator[list[Event]]:
    yield [(0, "", one) for one in frames]


def _stream(call: Call, hosted: HostedSession, process: GuestProcess) -> Response:
    return wire.FrameResponse(call, _frames(hosted, process, _ping(call)), hosted.id)


async def _frames(
    hosted: HostedSession, process: GuestProcess, pause: float
) -> AsyncIterator[list[Event]]:
    async for events in hosted.processes.events(process, 0, 0, pause):
        told = [_event(process, kind, json.loads(line)) for _, kind, line in events]
        yield [(0, "", wire.frame({"event": one})) for one in told]
        if hosted.session.frozen:  # to look at the process again would thaw the sandbox
            yield [(0, "", wire.last_frame(Problem(502, "sandbox", f"{GONE}: it was paused")))]
            return
    yield [(0, "", wire.last_frame())]


def _event(process: GuestProcess, kind: str, found: dict[str, Any]) -> dict[str, Any]:
    if kind == "started":
        return {"start": {"pid": found["pid"]}}
    if kind in ("stdout", "stderr"):
        kind = "pty" if process.has_terminal else kind
        return {"data": {kind: base64.b64encode(found["text"].encode()).decode()}}
    if kind == "exited":
        code = found["exit_code"] if isinstance(found["exit_code"], int) else 1
        killed = f"signal: {found['signal']}" if found["signal"] else ""
        end = {"exitCode": code, "exited": not killed, "status": killed or f"exit status {code}"}
        return {"end": {**end, **({"error": killed} if killed else {})}}
    return {"keepalive": {}}


def _end_in_time(call: Call, hosted: HostedSession, process: GuestProcess) -> None:
    """Kill a process when the time is over that its client gave it, also if that has left."""
    text = call.request.headers.get("connect-timeout-ms", "")
    if not text.isdecimal() or len(text) > 10:
        return
    later = asyncio.get_running_loop().call_later

    async def kill() -> None:
        with contextlib.suppress(Exception):  # it, or its sandbox, may be gone
            await hosted.processes.signal(process, signal.SIGKILL)

    def over() -> None:
        if hosted.over or process.end is not None:
            return
        if hosted.session.frozen:  # a signal would thaw the sandbox: the process waits as it does
            later(1, over)
        else:
            call.service.spawn(kill())

    later(min(int(text) / 1000, call.service.settings.max_seconds), over)


def _ping(call: Call) -> float:
    """Return after how many seconds of silence the client wants a sign of life."""
    text = call.request.headers.get("keepalive-ping-interval", "")
    asked = int(text) if text.isdecimal() and len(text) < 5 else 50
    return float(max(1, min(asked, call.service.settings.keepalive_seconds)))


async def _process(hosted: HostedSession, given: Any) -> GuestProcess:
    chosen = given.get("process") if isinstance(given, dict) else None
    pid = chosen.get("pid") if isinstance(chosen, dict) else None
    for one in await hosted.processes.running():
        if pid is not None and one.pid == pid:
            return one
    raise Problem(404, "not_found", f"process with pid {pid!r:.20} not found")


def _data(given: Any) -> bytes:
    text = (given.get("stdin") or given.get("pty")) if isinstance(given, dict) else None
    try:
        return base64.b64decode(text or "", validate=True)
    except (ValueError, TypeError):
        raise Problem(400, "invalid", "stdin is not base64") from None


def _size(given: dict[str, Any]) -> dict[str, int]:
    """Return the size of a terminal; 400 if it is none."""
    pty = given.get("pty")
    size = pty.get("size") if isinstance(pty, dict) else None
    found = {name: size.get(name, 0) for name in ("rows", "cols")} if isinstance(size, dict) else {}
    if not found or not all(type(n) is int and 0 <= n < MOST_CELLS for n in found.values()):
        raise Problem(400, "invalid", f"pty.size has rows and cols below {MOST_CELLS}")
    return found


def _texts(given: Any) -> list[str]:
    if not isinstance(given, list) or len(given) > MOST_ARGUMENTS:
        raise Problem(400, "invalid", f"args is a list of at most {MOST_ARGUMENTS} texts")
    if not all(isinstance(one, str) for one in given):
        raise Problem(400, "invalid", "args has texts only")
    return given
