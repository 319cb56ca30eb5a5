"""Requests about the processes of a remote session, as routes of the service."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

from atoll.errors import ProcessError, SandboxClosedError, SandboxError
from atoll.sandbox import verbs
from atoll.sandbox.process import no_process
from atoll.sandbox.wire import answers
from atoll.types import ProcessOutput

if TYPE_CHECKING:
    from atoll.backends.remote.connection import RemoteConnection


async def ask(connection: RemoteConnection, session: str, request: verbs.Request[Any]) -> Any:
    """Carry out a request; ProcessError if the service knows no such process."""
    place = f"{session}/processes"
    if isinstance(request, verbs.Start):
        return answers.read_process(await connection.call("POST", place, _described(request)))
    if isinstance(request, verbs.ListProcesses):
        listed = await connection.call("GET", place)
        return [answers.read_process(item) for item in answers.field(listed, "items", list)]
    ident = str(request.params().get("process"))
    try:
        return await _ask_one(connection, f"{place}/{ident}", request)
    except SandboxClosedError as exc:
        problem = vars(exc).get("problem") or {}
        if "such process" in str(problem.get("detail")):
            raise no_process(ident) from None
        raise


async def _ask_one(connection: RemoteConnection, place: str, request: verbs.Request[Any]) -> Any:
    asked: Any = request
    match asked:
        case verbs.ReadProcess():
            out, err = (_offset(at) for at in (asked.stdout, asked.stderr))
            query = f"out={out}&err={err}&wait={int(asked.wait_ms)}"
            return _output(await connection.call("GET", f"{place}/output?{query}"))
        case verbs.WriteProcess():
            where = f"{place}/input?end={int(asked.end)}"
            content = base64.b64decode(asked.data)
            answer = await connection.call("POST", where, content=content)
            return answers.field(answer, "written", int)
        case verbs.ResizeProcess(size=[rows, columns]):
            return await connection.call("POST", f"{place}/resize", {"rows": rows, "cols": columns})
        case verbs.SignalProcess():
            return await connection.call("POST", f"{place}/signal", {"signal": asked.signal})
    raise ProcessError(f"not a request about a process: {request.verb}")


def _described(request: verbs.Start) -> dict[str, Any]:
    """Return the body of the request that starts a process."""
    command = request.argv if request.command is None else request.command
    body: dict[str, Any] = {
        "command": command,
        "cwd": request.cwd,
        "env": request.env,
        "stdin": request.stdin,
    }
    if request.pty is not None:
        body["pty"] = dict(zip(("rows", "cols"), request.pty, strict=True))
    return body


def _offset(at: int | None) -> str:
    return "none" if at is None else str(at)


def _output(answer: Any) -> ProcessOutput:
    try:
        out, err = (
            base64.b64decode(answers.field(answer, name, str), validate=True)
            for name in ("stdout", "stderr")
        )
    except binascii.Error:
        raise SandboxError("invalid answer: output is not base64") from None
    return ProcessOutput(
        info=answers.read_process(answers.field(answer, "process", dict)),
        stdout=out,
        stdout_end=answers.field(answer, "stdout_end", int),
        stderr=err,
        stderr_end=answers.field(answer, "stderr_end", int),
    )
