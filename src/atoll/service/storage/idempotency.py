"""Idempotency keys: what was asked under one key is done once, also if the service is killed.

A row is written before the work begins and gets the answer at its end. A row without an answer
that an earlier process left says that the outcome is not known: the work is not done again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.service import clock
from atoll.service.http.problems import Problem, of_error
from atoll.service.storage.stored import ANSWER_BYTES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atoll.service.storage.database import Ledger
    from atoll.service.storage.stored import Reservation

    Place = tuple[str, str, str]

MAX_KEY = 200
_WHERE = "WHERE tenant = ? AND scope = ? AND key = ?"


@dataclass(frozen=True, slots=True)
class Answer:
    """A status and a body that are sent again for the same key."""

    status: int
    body: bytes


class IdempotencyKeys:
    """Answers by tenant, route and key."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._running: dict[Place, tuple[bytes, Any, Reservation]] = {}

    def find(self, place: Place, fingerprint: bytes) -> Any:
        """Return what runs under the key, or its Answer; None for a new key.

        422 if the key was used for another body, 409 if its outcome is not known.
        """
        if not 0 < len(place[2]) <= MAX_KEY or not place[2].isprintable():
            raise Problem(400, "invalid", f"an Idempotency-Key has 1 to {MAX_KEY} characters")
        if place in self._running:
            known, running, _ = self._running[place]
            return _same(known, fingerprint, running)
        row = self._ledger.one(f"SELECT * FROM answers {_WHERE}", *place)  # noqa: S608
        if row is None:
            return None
        answer = Answer(row["status"] or 0, row["body"] or b"")
        answer = _same(row["fingerprint"], fingerprint, answer)
        if not answer.status:
            text = "the service ended while it worked on this key, and the outcome is not known"
            raise Problem(409, "outcome_unknown", f"{text}: look, then use another key")
        return answer

    def begin(self, place: Place, fingerprint: bytes, running: Any, room: Reservation) -> None:
        """Note that work begins under a new key, for a body with this SHA-256.

        `room` is for the answer; 403 if the tenant may not store any more.
        """
        room.grow(ANSWER_BYTES)
        row = (*place, fingerprint, clock.now())
        self._ledger.write("INSERT INTO answers VALUES (?, ?, ?, ?, NULL, NULL, ?)", *row)
        self._running[place] = fingerprint, running, room

    def finish(self, place: Place, answer: Answer | None) -> None:
        """Keep the answer; None if nothing was done, so that the key can be used again."""
        _, _, room = self._running.pop(place)
        with room:
            if answer is None:
                self._ledger.write(f"DELETE FROM answers {_WHERE}", *place)  # noqa: S608
                return
            try:
                room.grow(len(answer.body))
            except Problem as exc:
                answer = _not_kept(exc)
            query = f"UPDATE answers SET status = ?, body = ? {_WHERE}"  # noqa: S608
            self._ledger.write(query, answer.status, answer.body, *place)

    async def once(
        self,
        place: Place,
        fingerprint: bytes,
        room: Reservation,
        work: Callable[[], Awaitable[Answer]],
    ) -> tuple[Answer, bool]:
        """Return the answer of the first call with this key, and whether it was made before."""
        found = self.find(place, fingerprint)
        if isinstance(found, Answer):
            return found, True
        if found is None:
            started = asyncio.Event()
            task = asyncio.ensure_future(self._work(place, work, started))
            try:
                self.begin(place, fingerprint, task, room)
            except BaseException:
                task.cancel()
                raise
            started.set()
            return await asyncio.shield(task), False
        return await asyncio.shield(found), True

    async def _work(
        self, place: Place, work: Callable[[], Awaitable[Answer]], started: asyncio.Event
    ) -> Answer:
        await started.wait()
        try:
            answer = await work()
        except BaseException as exc:
            problem = of_error(exc) if isinstance(exc, Exception) else None
            nothing = problem is None or problem.ran_nothing
            self.finish(place, None if nothing else _refusal(problem))
            raise
        self.finish(place, answer)
        return answer


def _not_kept(why: Problem) -> Answer:
    """Return what is kept in place of an answer that the tenant has no room for."""
    text = f"it was done, and its answer could not be kept ({why.detail}): do not send it again"
    problem = Problem(409, "answer_not_kept", text)
    return Answer(problem.status, bytes(problem.response().body))


def _refusal(problem: Problem | None) -> Answer | None:
    return None if problem is None else Answer(problem.status, bytes(problem.response().body))


def _same(known: bytes, fingerprint: bytes, found: Any) -> Any:
    if known != fingerprint:
        text = "the Idempotency-Key was used with another body: use another key for it"
        raise Problem(422, "key_reused", text)
    return found
