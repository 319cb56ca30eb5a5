"""Encodes results as JSON and back; bytes and long texts are sent beside the message.

Decoding validates every field, as for a guest's own answer: see `read`.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from typing import TYPE_CHECKING, Any, TypeVar

from atoll.errors import SandboxError
from atoll.guest.shared import values
from atoll.network import NetworkRequest, NetworkUse
from atoll.policy import Isolation
from atoll.rpc.passed_fds import NO_FDS, PassedFds, Reply
from atoll.sandbox import result_fields
from atoll.types import Artifact, Display, ExecuteResponse, Outcome, SandboxResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.guest.shared.messages import Json

T = TypeVar("T", SandboxResult, ExecuteResponse)
LONG_TEXT = 1 << 20
_PLAIN = (int, str, float, bool)
_LEVEL_NAMES = {level: str(level) for level in Isolation}
_LEVELS = {name: level for level, name in _LEVEL_NAMES.items()}
_FIELDS = {
    shape: [(field.name, field.default) for field in dataclasses.fields(shape)]
    for shape in (SandboxResult, ExecuteResponse)
}
_VALUES_OF = {
    shape: operator.attrgetter(*(name for name, _ in fields)) for shape, fields in _FIELDS.items()
}


def pack(result: SandboxResult | ExecuteResponse) -> Reply:
    """Return a result as the reply to the request for it."""
    plain, beside = to_wire(result)
    return Reply({"result": plain}, PassedFds([beside]) if beside else NO_FDS)


def unpack(shape: type[T], reply: Reply) -> T:
    """Return the result in a daemon's reply; SandboxError if it has none."""
    beside = b"" if reply.passed_fds is NO_FDS else bytes(reply.passed_fds.take_bytes())
    answer = reply.value if isinstance(reply.value, dict) else {}
    return read(shape, answer.get("result"), beside)


def to_wire(result: SandboxResult | ExecuteResponse) -> tuple[Json, bytearray]:
    """Return the fields that differ from their defaults, and the bytes that they refer to."""
    beside = bytearray()
    plain: Json = {}
    shape = type(result)
    for (name, default), value in zip(_FIELDS[shape], _VALUES_OF[shape](result), strict=True):
        if value is not default:
            write = _WRITERS.get(name)
            plain[name] = write(value, beside) if write else value
    return plain, beside


def read(shape: type[T], plain: Any, beside: bytes = b"", who: str = "daemon") -> T:
    """Return what `who` answered; SandboxError if a field cannot be that of a result."""
    fields = {}
    try:
        for name, value in plain.items():
            if name in _READERS:
                fields[name] = _READERS[name](value, beside)
            elif type(value) in _KINDS[name]:
                fields[name] = value
            else:
                raise ValueError(f"{name} cannot be {value!r:.60}")
            if name in _LIMITS and value is not None and not 0 <= value < _LIMITS[name]:
                raise ValueError(f"{name} cannot be {value!r:.60}")
        return shape(**fields)
    except result_fields.SHAPE_ERRORS as exc:
        raise SandboxError(f"the {who} sent no result: {exc!r}"[:500]) from None


_NONE = type(None)
_TEXTS = ("error", "error_type", "value_repr", "workspace_path", "image", "cold_start")
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(_TEXTS, (str, _NONE)),
    **dict.fromkeys(("truncated", "state_lost"), (bool,)),
    **dict.fromkeys(("duration_ms", "cpu_ms"), (float, int, _NONE)),
    **dict.fromkeys(("fuel_consumed", "memory_used_bytes", "exit_code"), (int, _NONE)),
}
"""The types of fields that are sent as they are."""
_LIMITS: dict[str, float] = {
    "duration_ms": math.inf,
    "cpu_ms": math.inf,
    "fuel_consumed": result_fields.MAX_SIZE,
    "memory_used_bytes": result_fields.MAX_SIZE,
    "exit_code": 256,
}
"""Fields that are numbers from 0 up to these."""


def _artifact(path: Any, size: Any, media_type: Any) -> Artifact:
    path, size = result_fields.check_path(path), result_fields.check_size(size)
    if type(media_type) is not str:
        raise ValueError("not a media type")
    return Artifact(path=path, size=size, media_type=media_type)


def _files(names: list[Any], _beside: bytes) -> tuple[str, ...]:
    """Return names of files in the working folder; ValueError for any other."""
    return tuple(result_fields.check_path(name) for name in names)


def _put(data: bytes, beside: bytearray) -> list[int]:
    start = len(beside)
    beside += data
    return [start, len(data)]


def _get(place: list[int], beside: bytes) -> bytes:
    start, size = place
    if not 0 <= start <= start + size <= len(beside):
        raise ValueError("bytes that did not come")
    return beside[start : start + size]


def _put_text(text: str, beside: bytearray) -> Any:
    return text if len(text) < LONG_TEXT else _put(text.encode("utf-8", "surrogatepass"), beside)


def _get_text(value: Any, beside: bytes) -> str:
    if isinstance(value, str):
        return value
    return _get(value, beside).decode("utf-8", "surrogatepass")


def _put_displays(displays: tuple[Display, ...], beside: bytearray) -> list[Any]:
    return [[display.media_type, _put(display.data, beside)] for display in displays]


def _get_displays(rows: list[Any], beside: bytes) -> tuple[Display, ...]:
    return tuple(Display(media_type=kind, data=_get(place, beside)) for kind, place in rows)


def _put_artifacts(artifacts: tuple[Artifact, ...], _beside: bytearray) -> list[Any]:
    return [[artifact.path, artifact.size, artifact.media_type] for artifact in artifacts]


def _get_artifacts(rows: list[Any], _beside: bytes) -> tuple[Artifact, ...]:
    return tuple(_artifact(*row) for row in rows)


def _put_network(use: NetworkUse, _beside: bytearray) -> Json:
    return dataclasses.asdict(use)


def _get_network(plain: Json | None, _beside: bytes) -> NetworkUse | None:
    if plain is None:
        return None
    rows = tuple(NetworkRequest(**request) for request in plain["requests"])
    return NetworkUse(requests=rows, unlisted=plain["unlisted"])


_WRITERS: dict[str, Callable[[Any, bytearray], Any]] = {
    "kind": lambda kind, _: kind.name,
    "stdout": _put_text,
    "output": _put_text,
    "stderr": _put_text,
    "value": lambda value, _: value if type(value) in (str, bool) else values.encode(value),
    "error_args": lambda given, _: [values.encode(item) for item in given],
    "displays": _put_displays,
    "artifacts": _put_artifacts,
    "files_created": lambda names, _: list(names),
    "files_modified": lambda names, _: list(names),
    "state": _put,
    "network": _put_network,
    "isolation": lambda level, _: _LEVEL_NAMES[level],
}
_READERS: dict[str, Callable[[Any, bytes], Any]] = {
    "kind": lambda name, _: Outcome[name.upper()],
    "stdout": _get_text,
    "output": _get_text,
    "stderr": _get_text,
    "value": lambda value, _: value if type(value) in _PLAIN else values.decode_plain(value),
    "error_args": lambda given, _: tuple(values.decode_plain(item) for item in given),
    "displays": _get_displays,
    "artifacts": _get_artifacts,
    "files_created": _files,
    "files_modified": _files,
    "state": _get,
    "network": _get_network,
    "isolation": lambda name, _: _LEVELS[name],
}
