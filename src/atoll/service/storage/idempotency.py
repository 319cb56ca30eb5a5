"""Idempotency keys: a request under one key is carried out once, also if the service is killed.

A row is written before the work begins and gets the answer at its end. A row without an answer
that an earlier process left says that the outcome is not known: the work is not done again.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from atoll.service import clock
from atoll.service.http.problems import Problem, of_error
from atoll.service.storage.stored import ANSWER_BYTES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atoll.service.storage.database import Database
    from atoll.service.storage.stored import Reservation

MAX_KEY = 200
_WHERE = "WHERE tenant = ? AND scope = ? AND key = ?"


class IdempotencyScope(NamedTuple):
    """What an idempotency key of a client stands for: one body at one route of one tenant."""

    tenant: str
    route: str
    key: str
    fingerprint: bytes
    """The SHA-256 of the body."""

    @property
    def row(self) -> tuple[str, str, str]:
        """What names its row."""
        return self[:3]

    @property
    def digest(self) -> str:
        """What it is called in the log of a fleet's session."""
        return hashlib.sha256(repr(self.row).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Answer:
    """A status and a body that are sent again for the same key."""

    status: int
    body: bytes


class IdempotencyKeys:
    """Answers by tenant, route and key."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._running: dict[tuple[str, str, str], tuple[bytes, Any, Reservation]] = {}

    def find(self, scope: IdempotencyScope) -> Any:
        """Return what runs under the key, or its Answer; None for a new key.

        422 if the key was used for another body, 409 if its outcome is not known.
        """
        if not 0 < len(scope.key) <= MAX_KEY or not scope.key.isprintable():
            raise Problem(400, "invalid", f"an Idempotency-Key has 1 to {MAX_KEY} characters")
        if scope.row in self._running:
            known, running, _ = self._running[scope.row]
            return _same(known, scope, running)
        row = self._database.one(f"SELECT * FROM answers {_WHERE}", *scope.row)  # noqa: S608
        if row is None:
            return None
        answer = Answer(row["status"] or 0, row["body"] or b"")
        answer = _same(row["fingerprint"], scope, answer)
        if not answer.status:
            text = "the service ended while it worked on this key, and the outcome is not known"
            raise Problem(409, "outcome_unknown", f"{text}: look, then use another key")
        return answer

    def begin(self, scope: IdempotencyScope, running: Any, room: Reservation) -> None:
        """Note that work begins under a new key.

        `room` is for the answer; 403 if the tenant may not store any more.
        """
        room.grow(ANSWER_BYTES)
        row = (*scope, clock.now())
        self._database.write("INSERT INTO answers VALUES (?, ?, ?, ?, NULL, NULL, ?)", *row)
        self._running[scope.row] = scope.fingerprint, running, room

    def finish(self, scope: IdempotencyScope, answer: Answer | None) -> None:
        """Keep the answer; None if nothing was done, so that the key can be used again."""
        _, _, room = self._running.pop(scope.row)
        with room:
            if answer is None:
                self._database.write(f"DELETE FROM answers {_WHERE}", *scope.row)  # noqa: S608
                return
            try:
                room.grow(len(answer.body))
            except Problem as exc:
                answer = _not_kept(exc)
            query = f"UPDATE answers SET status = ?, body = ? {_WHERE}"  # noqa: S608
            self._database.write(query, answer.status, answer.body, *scope.row)

    async def once(
        self, scope: IdempotencyScope, room: Reservation, work: Callable[[], Awaitable[Answer]]
    ) -> tuple[Answer, bool]:
        """Return the answer of the first call with this key, and whether it was made before."""
        result = self.find(scope)
        if isinstance(result, Answer):
            return result, True
        if result is None:
            started = asyncio.Event()
            task = asyncio.ensure_future(self._work(scope, work, started))
            try:
                self.begin(scope, task, room)
            except BaseException:
                task.cancel()
                raise
            started.set()
            return await asyncio.shield(task), False
        return await asyncio.shield(result), True

    async def _work(
        self, scope: IdempotencyScope, work: Callable[[], Awaitable[Answer]], started: asyncio.Event
    ) -> Answer:
        await started.wait()
        try:
            answer = await work()
        except BaseException as exc:
            problem = of_error(exc) if isinstance(exc, Exception) else None
            nothing = problem is None or problem.ran_nothing
            self.finish(scope, None if nothing else _refusal(problem))
            raise
        self.finish(scope, answer)
        return answer


def _not_kept(why: Problem) -> Answer:
    """Return the stored substitute of an answer that the tenant has no room for."""
    text = f"it was done, and its answer could not be kept ({why.detail}): do not send it again"
    problem = Problem(409, "answer_not_kept", text)
    return Answer(problem.status, bytes(problem.response().body))


def _refusal(problem: Problem | None) -> Answer | None:
    return None if problem is None else Answer(problem.status, bytes(problem.response().body))


def _same(known: bytes, scope: IdempotencyScope, result: Any) -> Any:
    if known != scope.fingerprint:
        text = "the Idempotency-Key was used with another body: use another key for it"
        raise Problem(422, "key_reused", text)
    return result
