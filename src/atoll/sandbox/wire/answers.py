"""How the results of requests are sent by a daemon or a node, and read by its client.

What is long, or bytes, goes beside the message, in a memory file.
"""

from __future__ import annotations

import socket
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from atoll.errors import SandboxError
from atoll.rpc import blobs
from atoll.rpc.passed_fds import PassedFds, Reply
from atoll.sandbox.wire import results
from atoll.types import (
    CodeFault,
    CommittedImage,
    ExecuteResponse,
    ListeningPort,
    ProcessInfo,
    ProcessOutput,
    SandboxResult,
    validity,
)

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_ADDRESS = 64
R = TypeVar("R")
T = TypeVar("T")
GuestAnswer = dict[str, Any]
"""What a guest says of its variables, passed on unread: `variables` checks it for the caller."""


def field(answer: Any, name: str, kind: type[T]) -> T:
    """Return a field of an answer; SandboxError if it is missing or has another type."""
    value = mapping(answer).get(name)
    if type(value) is not kind:
        raise SandboxError(f"invalid answer: {name} must be a {kind.__name__}")
    return value


def mapping(answer: Any) -> dict[str, Any]:
    """Return an answer that has fields; SandboxError for any other."""
    if type(answer) is not dict:
        raise SandboxError("invalid answer: it must be an object")
    return answer


@dataclass(frozen=True)
class Answer(Generic[R]):
    """How the result of a request is sent."""

    described: str
    """For the documentation."""
    pack: Callable[[R], Reply]
    unpack: Callable[[Reply], R]
    """SandboxError if it cannot be such a result."""
    is_large: bool = False
    """Whether that takes long enough for a thread of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A session that was opened, started again, attached to or cloned."""

    isolation: str
    context_shared: bool
    token: str | None = None
    """What attaches to it later, if it is to outlive its client's connection."""
    fleet_session: str | None = None
    """Its name in its fleet."""


def _unpack_validity(reply: Reply) -> CodeFault | None:
    field(reply.value, "valid", bool)
    return CodeFault.of(reply.value)


def read_committed(answer: Any) -> CommittedImage:
    """Return the image that an answer describes; SandboxError if it is malformed."""
    return CommittedImage(
        image=field(answer, "image", str),
        digest=field(answer, "digest", str),
        files=field(answer, "files", int),
        layer_bytes=field(answer, "layer_bytes", int),
        left_out=field(answer, "left_out", dict),
    )


def _unpack_folders(reply: Reply) -> dict[str, int]:
    try:
        names = [str(name) for name in field(reply.value, "names", list)]
        if len(set(names)) != len(reply.passed_fds):
            raise SandboxError("the daemon named other folders than it opened")
        return {name: reply.passed_fds.take() for name in names}
    finally:
        reply.passed_fds.close()


def read_ports(pairs: list[Any]) -> tuple[ListeningPort, ...]:
    """Return the ports of an answer; SandboxError if they are not pairs of port and address."""
    try:
        return tuple(
            ListeningPort(number=int(number), address=str(address)[:MAX_ADDRESS])
            for number, address in pairs
        )
    except (TypeError, ValueError):
        raise SandboxError("invalid answer: ports must be pairs of port and address") from None


def _pack_opened(opened: Opened) -> Reply:
    plain = {"isolation": opened.isolation, "context_shared": opened.context_shared}
    return Reply(plain if opened.token is None else {**plain, "token": opened.token})


def _unpack_opened(reply: Reply) -> Opened:
    names = {name: mapping(reply.value).get(name) for name in ("token", "fleet_session")}
    return Opened(
        isolation=field(reply.value, "isolation", str),
        context_shared=field(reply.value, "context_shared", bool),
        **{name: value for name, value in names.items() if isinstance(value, str)},
    )


def _pack_output(output: ProcessOutput) -> Reply:
    plain = {
        "info": asdict(output.info),
        "stdout": len(output.stdout),
        "stdout_end": output.stdout_end,
        "stderr_end": output.stderr_end,
    }
    data = output.stdout + output.stderr if output.stderr else output.stdout
    return Reply(plain, PassedFds([data] if data else []))


def _unpack_output(reply: Reply) -> ProcessOutput:
    data = bytes(reply.passed_fds.take_bytes()) if reply.passed_fds else b""
    of_stdout = field(reply.value, "stdout", int)
    return ProcessOutput(
        info=read_process(field(reply.value, "info", dict)),
        stdout=data[:of_stdout],
        stdout_end=field(reply.value, "stdout_end", int),
        stderr=data[of_stdout:],
        stderr_end=field(reply.value, "stderr_end", int),
    )


_PROCESS_FIELDS: dict[str, tuple[type, ...]] = {
    "id": (str,),
    "pid": (int,),
    "command": (str, list),
    "started_at": (float, int),
    "pty": (bool,),
    "running": (bool,),
    "exit_code": (int, type(None)),
    "signal": (int, type(None)),
}


def read_process(given: Any) -> ProcessInfo:
    """Return the description of a process; SandboxError if it is malformed."""
    found = mapping(given)
    fields: dict[str, Any] = {name: found.get(name) for name in _PROCESS_FIELDS}
    for name, kinds in _PROCESS_FIELDS.items():
        if type(fields[name]) not in kinds:
            raise SandboxError(f"invalid answer: {name} of a process is {fields[name]!r:.60}")
    return ProcessInfo(**fields)


NOTHING = Answer[None]("nothing", lambda _: Reply(None), lambda _: None)
_RESULT = "`{result}`, and a memory file with what is long"
CELL = Answer(_RESULT, results.pack, partial(results.unpack, SandboxResult))
COMMAND = Answer(_RESULT, results.pack, partial(results.unpack, ExecuteResponse))
VALIDITY = Answer(
    "`{valid}`; if not, also `line` and `message`",
    lambda fault: Reply(validity(fault)),
    _unpack_validity,
)
MARK = Answer[str](
    "`{mark}`", lambda mark: Reply({"mark": mark}), lambda reply: field(reply.value, "mark", str)
)
MARKS = Answer[tuple[str, ...]](
    "`{marks}`",
    lambda marks: Reply({"marks": list(marks)}),
    lambda reply: tuple(map(str, field(reply.value, "marks", list))),
)
STATE = Answer[bytes](
    "`{}`, and a memory file",
    lambda state: Reply({}, PassedFds([blobs.write(state)])),
    lambda reply: blobs.read(reply.passed_fds.take()),
    is_large=True,
)
COMMITTED = Answer[CommittedImage](
    "`{image, digest, files, layer_bytes, left_out}`",
    lambda made: Reply(asdict(made)),
    lambda reply: read_committed(reply.value),
)
FOLDERS = Answer[dict[str, int]](
    "`{names}`, and their descriptors",
    lambda folders: Reply({"names": list(folders)}, PassedFds(folders.values())),
    _unpack_folders,
)
OPENED = Answer(
    "`{isolation, context_shared}`, and the `token` of a session that is kept",
    _pack_opened,
    _unpack_opened,
)
PORTS = Answer[tuple[ListeningPort, ...]](
    "`{ports}`: pairs of port and address",
    lambda ports: Reply({"ports": [[port.number, port.address] for port in ports]}),
    lambda reply: read_ports(field(reply.value, "ports", list)),
)
CONNECTION = Answer[socket.socket](
    "`{}`, and the descriptor of a connected socket",
    lambda connection: Reply({}, PassedFds([connection.detach()])),
    lambda reply: socket.socket(fileno=reply.passed_fds.take()),
)
PROCESS = Answer[ProcessInfo](
    "what is known of it: `{id, pid, command, running, exit_code, signal, ...}`",
    lambda info: Reply(asdict(info)),
    lambda reply: read_process(reply.value),
)
PROCESSES = Answer[list[ProcessInfo]](
    "`{processes}`, each as the answer to `start`",
    lambda infos: Reply({"processes": list(map(asdict, infos))}),
    lambda reply: list(map(read_process, field(reply.value, "processes", list))),
)
OUTPUT = Answer(
    "`{info, stdout, stdout_end, stderr_end}`, and a memory file: `stdout` bytes, then stderr",
    _pack_output,
    _unpack_output,
)
WRITTEN = Answer[int](
    "`{written}`: how many bytes it took",
    lambda count: Reply({"written": count}),
    lambda reply: field(reply.value, "written", int),
)
AS_IT_IS = Answer[Reply]("as the operation says", lambda reply: reply, lambda reply: reply)


def of_guest(described: str) -> Answer[GuestAnswer]:
    """Return how a guest's answer about variables is sent."""
    return Answer(
        described, Reply, lambda reply: reply.value if isinstance(reply.value, dict) else {}
    )
