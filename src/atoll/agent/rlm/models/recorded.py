"""Record the requests to a model and its replies; play them back, so that a run is a test."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
import weakref
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from atoll import errors
from atoll.agent.rlm.models.types import Completion, Message, Options, Usage
from atoll.concurrency import forks
from atoll.errors import ModelError, ModelRecordError, RecordUnreadableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from atoll.agent.rlm.models.types import CallOptions, Model


VERSION = 1
_EXCERPT = 40
_FACTS = ("status", "code", "received")
"""What an error knows besides its message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The model, the messages and the options."""

    model: str
    messages: tuple[Message, ...]
    options: Options

    def as_json(self) -> dict[str, object]:
        """In the one form that is hashed and kept."""
        return {
            "model": self.model,
            "messages": [[message.role, message.content] for message in self.messages],
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
        """Return the exchange of a record's line; ValueError if the line is not one."""
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
    """Return the first thing in which two requests differ, in words."""
    if asked.model != recorded.model:
        return f"the model: recorded {recorded.model!r}, asked {asked.model!r}"
    if asked.options != recorded.options:
        return f"the options: recorded {recorded.options}, asked {asked.options}"
    at = common(asked, recorded)
    if at == len(recorded.messages) or at == len(asked.messages):
        had, has = len(recorded.messages), len(asked.messages)
        return f"the number of messages: recorded {had}, asked {has}; the first {at} are the same"
    before, other = recorded.messages[at], asked.messages[at]
    if before.role != other.role:
        return f"message {at}: recorded from {before.role!r}, asked from {other.role!r}"
    return f"message {at} ({before.role}), {_where(before.content, other.content)}"


def common(request: Request, other: Request) -> int:
    """Return how many messages at the beginning are the same."""
    pairs = zip(request.messages, other.messages, strict=False)
    return next(
        (at for at, (a, b) in enumerate(pairs) if a != b), min(map(_length, (request, other)))
    )


def _nearness(request: Request, other: Request) -> tuple[int, ...]:
    """Return what a record has in common with a request, the weightiest first."""
    same = sum(a == b for a, b in zip(request.messages, other.messages, strict=False))
    fewer = -abs(len(request.messages) - len(other.messages))
    return request.model == other.model, common(request, other), same, fewer


def _length(request: Request) -> int:
    return len(request.messages)


def _where(recorded: str, asked: str) -> str:
    pairs = enumerate(zip(recorded, asked, strict=False))
    at = next((at for at, (a, b) in pairs if a != b), min(len(recorded), len(asked)))
    start = max(0, at - _EXCERPT // 2)
    shown = [repr(text[start : start + _EXCERPT]) for text in (recorded, asked)]
    return f"character {at}: recorded {shown[0]}, asked {shown[1]}"


def _request(row: Mapping[str, Any]) -> Request:
    options = row["options"]
    return Request(
        model=row["model"],
        messages=tuple(Message(role, content) for role, content in row["messages"]),
        options=Options(**{**options, "stop": tuple(options["stop"])}),
    )


def _completion(row: Mapping[str, Any]) -> Completion:
    return Completion(**{**row, "usage": Usage(**row["usage"])})


def _error_row(error: ModelError) -> dict[str, object]:
    facts = {name: getattr(error, name) for name in _FACTS if hasattr(error, name)}
    return {"kind": type(error).__name__, "message": str(error), "facts": facts}


def _error(kind: str, message: str, facts: Mapping[str, Any]) -> ModelError:
    """Return the error that was raised; an unknown class becomes a ModelError."""
    found: Any = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, ModelError):
        error: ModelError = found(message, **facts)
        return error
    return ModelError(message)


def request_of(model: str, messages: Sequence[Message], options: CallOptions) -> Request:
    """Return the request that a call of `complete` is."""
    return Request(model=model, messages=tuple(messages), options=Options.of(options))


def unknown(asked: Request, kept: Sequence[Request], where: str) -> ModelRecordError:
    """Return what to say of a request that no record has."""
    if not kept:
        return ModelRecordError(f"{where} has no exchange in it")
    nearest = max(kept, key=lambda exchange: _nearness(exchange, asked))
    return ModelRecordError(
        f"{where} has no such request. The nearest differs in {difference(asked, nearest)}. "
        "Record it anew where that is meant to be"
    )


_OPEN = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class Recorder:
    """A Model that is another one, and appends every exchange to a file.

    Several may share the file: each line says whose it is. Prompts and answers stand in it, keys
    do not, and only its owner can read it.
    """

    def __init__(self, model: Model, path: str | Path) -> None:
        self._model = model
        self._path = Path(path)
        try:
            self._fd = os.open(self._path, _OPEN, 0o600)
        except OSError as exc:
            raise ModelRecordError(f"no record can be kept in {path}: {exc.strerror}") from None
        self._finalizer = weakref.finalize(self, os.close, self._fd)
        os.fchmod(self._fd, 0o600)
        self._lock = forks.new_lock()

    @property
    def name(self) -> str:
        """The name of the model that is recorded."""
        return self._model.name

    async def complete(
        self, messages: Sequence[Message], **options: Unpack[CallOptions]
    ) -> Completion:
        """Return what the model answers, once it is recorded; its errors too."""
        request = request_of(self.name, messages, options)
        try:
            reply = await self._model.complete(messages, **options)
        except ModelError as exc:
            self._append(Exchange(request=request, reply=exc))
            raise
        self._append(Exchange(request=request, reply=reply))
        return reply

    def would_cost(self, usage: Usage) -> float | None:
        """As the model says."""
        return self._model.would_cost(usage)

    async def close(self) -> None:
        """Close the file and the model."""
        with self._lock:
            self._finalizer()
        await self._model.close()

    def _append(self, exchange: Exchange) -> None:
        line = exchange.line()
        with self._lock:
            if not self._finalizer.alive:
                raise ModelRecordError(f"the record {self._path} has been closed")
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                _write_whole(self._fd, line)
            except OSError as exc:
                reason = f"{exc.strerror}; what it had before is whole"
                raise ModelRecordError(f"{self._path} cannot be written: {reason}") from None
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)


def _write_whole(fd: int, line: bytes) -> None:
    """Write a whole line, or nothing of it: half a line would spoil the next one."""
    size = os.fstat(fd).st_size
    left = memoryview(line)
    try:
        while left:
            left = left[os.write(fd, left) :]
    except OSError:
        os.ftruncate(fd, size)
        raise


class Replay:
    """A Model that answers from a record: the same request, the same reply.

    A request that was made several times gets its replies in the order in which they came. Of a
    record of several models, `name` says which this is; unset: the first of them. With `in_order`,
    a request that is not in the record gets the first reply that was not used yet.
    """

    def __init__(
        self, path: str | Path, *, name: str | None = None, in_order: bool = False
    ) -> None:
        self._path, self._in_order = Path(path), in_order
        exchanges = _read(self._path)
        self.name = name or (exchanges[0].request.model if exchanges else "replay/empty")
        self._replies: dict[str, deque[Completion | ModelError]] = {}
        self._requests: dict[str, Request] = {}
        self._counts: dict[str, int] = {}
        self._lock = forks.new_lock()
        for exchange in exchanges:
            if exchange.request.model != self.name:
                continue
            key = exchange.request.hash
            self._requests[key] = exchange.request
            self._replies.setdefault(key, deque()).append(exchange.reply)
            self._counts[key] = self._counts.get(key, 0) + 1

    @property
    def left(self) -> int:
        """Replies that were not asked for yet: 0 after a run that was the same."""
        with self._lock:
            return sum(map(len, self._replies.values()))

    async def complete(
        self, messages: Sequence[Message], **options: Unpack[CallOptions]
    ) -> Completion:
        """Return the reply that is recorded for this request."""
        reply = self._take(request_of(self.name, messages, options))
        if isinstance(reply, ModelError):
            raise reply
        if (on_text := options.get("on_text")) is not None and reply.text:
            on_text(reply.text)
        return reply

    def would_cost(self, usage: Usage) -> float | None:  # noqa: ARG002 - nothing is asked
        """Return 0: a replay costs nothing; its answers say what they did cost."""
        return 0.0

    async def close(self) -> None:
        """There is nothing to let go of."""

    def _take(self, request: Request) -> Completion | ModelError:
        key = request.hash
        with self._lock:
            if self._in_order and not self._replies.get(key):
                key = next((known for known, left in self._replies.items() if left), key)
            if key not in self._replies:
                raise unknown(request, list(self._requests.values()), f"the record {self._path}")
            if not self._replies[key]:
                had = self._counts[key]
                raise ModelRecordError(
                    f"the record {self._path} has this request {had} times: it was made once more"
                )
            return self._replies[key].popleft()


def _read(path: Path) -> list[Exchange]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as exc:
        raise RecordUnreadableError(f"the record {path} cannot be read: {exc.strerror}") from None
    exchanges = []
    for number, line in enumerate(lines, 1):
        try:
            exchanges.append(Exchange.parse(line))
        except ValueError as exc:
            raise RecordUnreadableError(
                f"the record {path} cannot be read: line {number} is not an exchange: {exc}"
            ) from None
    return exchanges
