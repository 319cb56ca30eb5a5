"""Results as plain JSON and back, whole: bytes and long texts travel beside them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

from atoll.errors import SandboxError
from atoll.guest import values
from atoll.network import NetworkRequest, NetworkUse
from atoll.policy import Isolation
from atoll.types import Artifact, Display, ExecuteResponse, Outcome, SandboxResult

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T", SandboxResult, ExecuteResponse)
LONG_TEXT = 1 << 20
_FIELDS = {
    shape: {field.name: field.default for field in dataclasses.fields(shape)}
    for shape in (SandboxResult, ExecuteResponse)
}


def to_wire(result: SandboxResult | ExecuteResponse) -> tuple[dict[str, Any], bytearray]:
    """The fields that are not at their default, and the bytes that they point into."""
    beside = bytearray()
    plain: dict[str, Any] = {}
    for name, default in _FIELDS[type(result)].items():
        value = getattr(result, name)
        if value is not default:
            write = _WRITERS.get(name)
            plain[name] = write(value, beside) if write else value
    return plain, beside


def from_wire(plain: dict[str, Any], beside: bytes) -> SandboxResult:
    """The result again; SandboxError for what `to_wire` never makes."""
    return _read(SandboxResult, plain, beside)


def response_from_wire(plain: dict[str, Any], beside: bytes) -> ExecuteResponse:
    """The same for a shell command."""
    return _read(ExecuteResponse, plain, beside)


def _read(shape: type[T], plain: dict[str, Any], beside: bytes) -> T:
    try:
        fields = {
            name: _READERS[name](value, beside) if name in _READERS else value
            for name, value in plain.items()
        }
        return shape(**fields)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as exc:
        raise SandboxError(f"the daemon sent no result: {exc!r}"[:500]) from None


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
    return [[one.media_type, _put(one.data, beside)] for one in displays]


def _get_displays(rows: list[Any], beside: bytes) -> tuple[Display, ...]:
    return tuple(Display(media_type=kind, data=_get(place, beside)) for kind, place in rows)


def _put_artifacts(artifacts: tuple[Artifact, ...], _beside: bytearray) -> list[Any]:
    return [[one.path, one.size, one.media_type] for one in artifacts]


def _get_artifacts(rows: list[Any], _beside: bytes) -> tuple[Artifact, ...]:
    return tuple(Artifact(path=path, size=size, media_type=kind) for path, size, kind in rows)


def _put_network(use: NetworkUse, _beside: bytearray) -> dict[str, Any]:
    return dataclasses.asdict(use)


def _get_network(plain: dict[str, Any], _beside: bytes) -> NetworkUse:
    rows = tuple(NetworkRequest(**one) for one in plain["requests"])
    return NetworkUse(requests=rows, unlisted=plain["unlisted"])


_WRITERS: dict[str, Callable[[Any, bytearray], Any]] = {
    "kind": lambda kind, _: kind.name,
    "stdout": _put_text,
    "output": _put_text,
    "stderr": _put_text,
    "value": lambda value, _: values.encode(value),
    "error_args": lambda given, _: [values.encode(one) for one in given],
    "displays": _put_displays,
    "artifacts": _put_artifacts,
    "files_created": lambda names, _: list(names),
    "files_modified": lambda names, _: list(names),
    "state": _put,
    "network": _put_network,
    "isolation": lambda level, _: str(level),
}
_READERS: dict[str, Callable[[Any, bytes], Any]] = {
    "kind": lambda name, _: Outcome[name],
    "stdout": _get_text,
    "output": _get_text,
    "stderr": _get_text,
    "value": lambda value, _: values.decode(value),
    "error_args": lambda given, _: tuple(values.decode(one) for one in given),
    "displays": _get_displays,
    "artifacts": _get_artifacts,
    "files_created": lambda names, _: tuple(names),
    "files_modified": lambda names, _: tuple(names),
    "state": _get,
    "network": _get_network,
    "isolation": lambda name, _: Isolation.parse(name),
}
