"""What each key uses now: requests by a token bucket, executions and sessions by counters.

A counter is raised in the same step in which the limit is checked, and lowered by a `with` block.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec import Struct

from atoll.service import clock
from atoll.service.http.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.service.access.keys import Principal
    from atoll.service.storage.database import Database

DAY_SECONDS = 86_400
FORGET_SECONDS = 3600
"""After it the use of a key that does nothing is on disk alone."""


class KeyUse(Struct):
    """What a key uses now."""

    executions: int = 0
    sessions: int = 0
    cpu_seconds_today: float = 0.0


@dataclass(slots=True)
class TokenBucket:
    """Requests that may be made at once; it fills as time passes."""

    tokens: float
    filled: float = field(default_factory=time.monotonic)

    def seconds_until_free(self, rate: float, room: float) -> float:
        """Fill the bucket at `rate` tokens per second, up to `room`; return when it has one."""
        now = time.monotonic()
        self.tokens = min(self.tokens + (now - self.filled) * rate, room)
        self.filled = now
        return max(0.0, (1 - self.tokens) / rate)


@dataclass(slots=True)
class _Use:
    bucket: TokenBucket
    connections: int = 0
    executions: int = 0
    sessions: int = 0
    day: int = 0
    cpu_seconds: float = 0.0
    count: int = 0
    saved: tuple[int, float] = (0, 0.0)

    @property
    def idle(self) -> bool:
        """Whether the key is idle, and its bucket of requests has been full for long."""
        busy = self.connections or self.executions or self.sessions
        return not busy and time.monotonic() - self.bucket.filled > FORGET_SECONDS


def no_cpu_left(most: float) -> Problem:
    """Return the refusal of a key that has used the CPU time of its day."""
    return used_today(f"the key has used its {most:g} CPU seconds of today (UTC)")


def used_today(text: str) -> Problem:
    """Return the refusal of a key until the next day (UTC)."""
    return Problem(429, "rate_limited", text, retry_after=DAY_SECONDS - clock.now() % DAY_SECONDS)


class Quotas:
    """The use of every key. CPU time of the day is written to the database, and read from it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._uses: dict[str, _Use] = {}

    def request(self, principal: Principal, patience: float = 0) -> float:
        """Count a request; return the seconds that it has to wait, 429 if they are over `patience`.

        What waits is counted at once, so requests go on one after the other at the key's rate.
        """
        quota, bucket = principal.quota, self._use(principal).bucket
        wait = bucket.seconds_until_free(quota.requests_per_second, quota.room)
        if wait > patience:
            text = f"the key may make {quota.requests_per_second:g} requests per second"
            raise Problem(429, "rate_limited", f"{text}: send fewer", retry_after=wait)
        bucket.tokens -= 1
        return wait

    @contextlib.contextmanager
    def connection(self, principal: Principal) -> Iterator[None]:
        """Count a request until its answer is sent, or a websocket; 429 if there are too many."""
        quota, use = principal.quota, self._use(principal)
        if use.connections >= quota.connections:
            text = f"the key has {use.connections} requests open, and may have {quota.connections}"
            raise Problem(429, "rate_limited", f"{text}: wait for one to end", retry_after=1)
        use.connections += 1
        try:
            yield
        finally:
            use.connections -= 1

    @contextlib.contextmanager
    def execution(self, principal: Principal) -> Iterator[None]:
        """Count an execution while it runs or waits; 429 if the key has too many."""
        quota, use = principal.quota, self._use(principal)
        if use.executions >= quota.executions:
            text = f"the key has {use.executions} executions of at most {quota.executions}"
            raise Problem(429, "rate_limited", f"{text}: wait for one to end", retry_after=1)
        if quota.cpu_seconds_per_day is not None:
            self.require_cpu(principal)
        use.executions += 1
        try:
            yield
        finally:
            use.executions -= 1

    def require_cpu(self, principal: Principal) -> None:
        """Raise 429 if the key has used the CPU time of its day."""
        most = principal.quota.cpu_seconds_per_day
        if most is not None and self._use(principal).cpu_seconds >= most:
            raise no_cpu_left(most)

    def used_cpu(self, principal: Principal, seconds: float) -> None:
        """Count CPU time of a sandbox."""
        self._use(principal).cpu_seconds += seconds

    def executed(self, principal: Principal, cpu_seconds: float = 0.0) -> None:
        """Count an execution that has ended towards the day, and CPU time of its sandbox."""
        use = self._use(principal)
        use.count += 1
        use.cpu_seconds += cpu_seconds

    def open_session(self, principal: Principal) -> None:
        """Count a session until `close_session`; 403 if the key has too many."""
        use = self._use(principal)
        if use.sessions >= principal.quota.sessions:
            text = f"the key has {use.sessions} sessions of at most {principal.quota.sessions}"
            raise Problem(403, "quota", f"{text}: delete one first")
        use.sessions += 1

    def add_session(self, principal: Principal) -> None:
        """Count a session that was opened elsewhere: its key had room for it then."""
        self._use(principal).sessions += 1

    def close_session(self, key: str) -> None:
        """Stop counting a session."""
        if key in self._uses:
            self._uses[key].sessions -= 1

    def now(self, key: str) -> KeyUse:
        """Return what a key uses now, and the CPU time of its day."""
        use = self._uses.get(key)
        if use is None:
            return KeyUse()
        today = use.cpu_seconds if use.day == int(clock.now() // DAY_SECONDS) else 0.0
        return KeyUse(use.executions, use.sessions, today)

    def save(self) -> None:
        """Write the use of the day to the database."""
        query = (
            "INSERT INTO usage VALUES (date(? * 86400, 'unixepoch'), ?, ?, ?) ON CONFLICT DO UPDATE"
            " SET executions = excluded.executions, cpu_seconds = excluded.cpu_seconds"
        )
        for key, use in list(self._uses.items()):
            if use.saved != (use.count, use.cpu_seconds):
                self._database.write(query, use.day, key, use.count, use.cpu_seconds)
                use.saved = use.count, use.cpu_seconds
            if use.idle:
                del self._uses[key]  # a user of LibreChat's is one of thousands

    def _use(self, principal: Principal) -> _Use:
        use = self._uses.get(principal.key)
        if use is None:
            use = self._uses[principal.key] = _Use(TokenBucket(principal.quota.room))
        today = int(clock.now() // DAY_SECONDS)
        if use.day != today:
            query = "SELECT * FROM usage WHERE key = ? AND day = date(? * 86400, 'unixepoch')"
            row = self._database.one(query, principal.key, today)
            use.day = today
            use.count, use.cpu_seconds = (row["executions"], row["cpu_seconds"]) if row else (0, 0)
            use.saved = use.count, use.cpu_seconds
        return use
