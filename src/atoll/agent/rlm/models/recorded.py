"""Record what is said to a model and what it answers; play it back, so that a run is a test."""

from __future__ import annotations

import fcntl
import os
import weakref
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.agent.rlm.models.exchange import Exchange, request_of, unknown
from atoll.concurrency import forks
from atoll.errors import ModelError, ModelRecordError, RecordUnreadableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.agent.rlm.models.exchange import Request
    from atoll.agent.rlm.models.types import Completion, Message, Model, OnText, Usage

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
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        stop: Sequence[str] = (),
        on_text: OnText | None = None,
    ) -> Completion:
        """What the model answers, once it is recorded; its errors too."""
        request = request_of(self.name, messages, max_tokens, temperature, stop)
        try:
            reply = await self._model.complete(
                messages,
                max_tokens=max_tokens,
                temperature=temperature,
                stop=stop,
                on_text=on_text,
            )
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
    """All of a line or nothing of it: half a line would spoil the next one."""
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
        for one in exchanges:
            if one.request.model != self.name:
                continue
            key = one.request.hash
            self._requests[key] = one.request
            self._replies.setdefault(key, deque()).append(one.reply)
            self._counts[key] = self._counts.get(key, 0) + 1

    @property
    def left(self) -> int:
        """Replies that nobody has asked for yet: 0 after a run that was the same."""
        with self._lock:
            return sum(map(len, self._replies.values()))

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        stop: Sequence[str] = (),
        on_text: OnText | None = None,
    ) -> Completion:
        """The reply that is recorded for this request."""
        reply = self._take(request_of(self.name, messages, max_tokens, temperature, stop))
        if isinstance(reply, ModelError):
            raise reply
        if on_text is not None and reply.text:
            on_text(reply.text)
        return reply

    def would_cost(self, usage: Usage) -> float | None:  # noqa: ARG002 - nothing is asked
        """A replay costs nothing; its answers tell what they did cost."""
        return 0.0

    async def close(self) -> None:
        """There is nothing to let go of."""

    def _take(self, request: Request) -> Completion | ModelError:
        key = request.hash
        with self._lock:
            if self._in_order and not self._replies.get(key):
                key = next((one for one, left in self._replies.items() if left), key)
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
