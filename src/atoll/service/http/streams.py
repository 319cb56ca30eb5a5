"""Answers that go on for long, and what ends them: their key is refused, or their session ends."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from atoll.service.http.problems import Problem, encode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.service.access.keys import Keys, Principal

Event = tuple[int, str, bytes]
"""Number (0: it is not counted), kind, and the whole event as JSON."""
KEEPALIVE: Event = 0, "keepalive", b'{"type":"keepalive"}'
_REFUSED = ("revoked", "expired")


def event(kind: str, /, **fields: Any) -> Event:
    """Return an event that is not counted."""
    return 0, kind, encode({"type": kind, **fields})


class Stream:
    """A stream of events or a websocket, in the task that serves it."""

    def __init__(self, principal: Principal, session: str) -> None:
        self.principal, self.session = principal, session
        self.problem: Problem | None = None
        """Why it was ended; None if it was not."""
        task = asyncio.current_task()
        assert task is not None
        self._task = task

    def end(self, problem: Problem) -> None:
        """Interrupt the task wherever it waits."""
        if self.problem is None:
            self.problem = problem
            self._task.cancel()

    def interrupted(self) -> Problem | None:
        """Return why it was ended, for a task that was cancelled, which then goes on to its end."""
        if self.problem is not None:
            self._task.uncancel()
        return self.problem


class Streams:
    """All that are open."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._open: set[Stream] = set()

    @contextlib.contextmanager
    def open(self, principal: Principal, session: str = "") -> Iterator[Stream]:
        """Let the current task be cancelled when the key is refused, or the session ends.

        The task asks `interrupted` then, tells its client, and ends.
        """
        stream = Stream(principal, session)
        self._open.add(stream)
        try:
            yield stream
        finally:
            self._open.discard(stream)

    def end_session(self, ident: str, reason: str) -> None:
        """End the streams of a session that has ended."""
        for stream in [stream for stream in self._open if stream.session == ident]:
            stream.end(Problem(410, "session_lost", f"the session has ended ({reason})"))

    def end_refused(self) -> None:
        """End the streams of keys that were revoked, or have expired."""
        for key in {stream.principal.key for stream in self._open}:
            if (problem := self._refusal(key)) is not None:
                for stream in [stream for stream in self._open if stream.principal.key == key]:
                    stream.end(problem)

    def check(self, principal: Principal) -> None:
        """Raise 401 if a key has been revoked, or has expired, since it was let in."""
        if (problem := self._refusal(principal.key)) is not None:
            raise problem

    def _refusal(self, key: str) -> Problem | None:
        try:
            self._keys.of_id(key)
        except Problem as exc:  # who acts by something else than a key is not in the database
            return exc if exc.reason in _REFUSED else None
        return None
