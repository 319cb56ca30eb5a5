"""One request and its reply as a line of JSON: what a record is made of."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll import errors
from atoll.agent.rlm.models.types import Completion, Message, Options, Usage
from atoll.errors import ModelError, ModelRecordError

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION = 1
_EXCERPT = 40
_FACTS = ("status", "code", "received")
"""What an error knows besides its message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked, of whom."""

    model: str
    messages: tuple[Message, ...]
    options: Options

    def as_json(self) -> dict[str, Any]:
        """In the one form that is hashed and kept."""
        return {
            "model": self.model,
            "messages": [[one.role, one.content] for one in self.messages],
            "options": dataclasses.asdict(self.options),
        }

    @property
    def hash(self) -> str:
        """The same for the same request, whenever and wherever it is made."""
        text = json.dumps(self.as_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request, and what came of it."""

    request: Request
    reply: Completion | ModelError

    def line(self) -> bytes:
        """As it stands in a record."""
        row = {"version": VERSION, "hash": self.request.hash, "request": self.request.as_json()}
        if isinstance(self.reply, Completion):
            row["reply"] = dataclasses.asdict(self.reply)
        else:
            row["error"] = _error_row(self.reply)
        return json.dumps(row).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Exchange:
        """From a record's line; ValueError where it is none."""
        try:
            row = json.loads(line)
            if row["version"] != VERSION:
                raise ValueError(f"version {row['version']!r}, not {VERSION}")
            request = _request(row["request"])
            if row["hash"] != request.hash:
                raise ValueError("its hash is not that of its request")
            reply = _error(**row["error"]) if "error" in row else _completion(row["reply"])
        except (KeyError, TypeError, AttributeError, RecursionError) as exc:
            raise ValueError(f"{type(exc).__name__}: {exc}") from None
        return cls(request=request, reply=reply)


def difference(asked: Request, recorded: Request) -> str:
    """The first thing in which two requests differ, in words."""
    if asked.model != recorded.model:
        return f"the model: recorded {recorded.model!r}, asked {asked.model!r}"
    if asked.options != recorded.options:
        return f"the options: recorded {recorded.options}, asked {asked.options}"
    at = common(asked, recorded)
    if at == len(recorded.messages) or at == len(asked.messages):
        had, has = len(recorded.messages), len(asked.messages)
        return f"the number of messages: recorded {had}, asked {has}; the first {at} are the same"
    one, other = recorded.messages[at], asked.messages[at]
    if one.role != other.role:
        return f"message {at}: recorded from {one.role!r}, asked from {other.role!r}"
    return f"message {at} ({one.role}), {_where(one.content, other.content)}"


def common(one: Request, other: Request) -> int:
    """How many messages at the beginning are the same."""
    pairs = zip(one.messages, other.messages, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(map(_length, (one, other))))


def _nearness(one: Request, other: Request) -> tuple[int, ...]:
    """What a record has in common with a request, the weightiest first."""
    same = sum(a == b for a, b in zip(one.messages, other.messages, strict=False))
    fewer = -abs(len(one.messages) - len(other.messages))
    return one.model == other.model, common(one, other), same, fewer


def _length(request: Request) -> int:
    return len(request.messages)


def _where(recorded: str, asked: str) -> str:
    pairs = enumerate(zip(recorded, asked, strict=False))
    at = next((at for at, (a, b) in pairs if a != b), min(len(recorded), len(asked)))
    start = max(0, at - _EXCERPT // 2)
    shown = [repr(text[start : start + _EXCERPT]) for text in (recorded, asked)]
    return f"character {at}: recorded {shown[0]}, asked {shown[1]}"


def _request(row: dict[str, Any]) -> Request:
    options = row["options"]
    return Request(
        model=row["model"],
        messages=tuple(Message(role, content) for role, content in row["messages"]),
        options=Options(**{**options, "stop": tuple(options["stop"])}),
    )


def _completion(row: dict[str, Any]) -> Completion:
    return Completion(**{**row, "usage": Usage(**row["usage"])})


def _error_row(error: ModelError) -> dict[str, Any]:
    facts = {name: getattr(error, name) for name in _FACTS if hasattr(error, name)}
    return {"kind": type(error).__name__, "message": str(error), "facts": facts}


def _error(kind: str, message: str, facts: dict[str, Any]) -> ModelError:
    """The error that was raised; one of somebody else's making is a ModelError."""
    found: Any = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, ModelError):
        error: ModelError = found(message, **facts)
        return error
    return ModelError(message)


def request_of(
    model: str,
    messages: Sequence[Message],
    max_tokens: int | None,
    temperature: float | None,
    stop: Sequence[str],
) -> Request:
    """The request that a call of `complete` is."""
    options = Options(max_tokens=max_tokens, temperature=temperature, stop=tuple(stop))
    return Request(model=model, messages=tuple(messages), options=options)


def unknown(asked: Request, kept: Sequence[Request], where: str) -> ModelRecordError:
    """What to say of a request that no record has."""
    if not kept:
        return ModelRecordError(f"{where} has no exchange in it")
    nearest = max(kept, key=lambda one: _nearness(one, asked))
    return ModelRecordError(
        f"{where} has no such request. The nearest differs in {difference(asked, nearest)}. "
        "Record it anew where that is meant to be"
    )
