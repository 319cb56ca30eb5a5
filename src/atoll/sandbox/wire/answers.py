"""Fields of an answer from the daemon or the service: of the type that is expected, or an error."""

from __future__ import annotations

from typing import Any, TypeVar

from atoll.errors import SandboxError

T = TypeVar("T")


def field(answer: Any, name: str, kind: type[T]) -> T:
    """Return a field of an answer; SandboxError if there is none, or one of another type."""
    value = mapping(answer).get(name)
    if type(value) is not kind:
        raise SandboxError(f"the answer has no known shape: {name} is no {kind.__name__}")
    return value


def mapping(answer: Any) -> dict[str, Any]:
    """Return an answer that has fields; SandboxError for any other."""
    if type(answer) is not dict:
        raise SandboxError("the answer has no known shape: it is no object")
    return answer
