"""What visitors of a key's previews use: requests, connections and bytes, counted per key.

They have counters of their own: a flood of visitors does not keep the key from its own API. Those
of the day are written to the database, and shared by services that have a Redis.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.service import clock
from atoll.service.access.quotas import DAY_SECONDS, TokenBucket, used_today
from atoll.service.http.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.service.access.keys import Principal
    from atoll.service.cluster.replicas import Replicas
    from atoll.service.storage.database import Database

BURST_SECONDS = 2.0


@dataclass(slots=True)
class Traffic:
    """What the visitors of one key have used."""

    bucket: TokenBucket
    connections: int = 0
    day: int = 0
    requests: int = 0
    bytes: int = 0
    saved: tuple[int, int] = (0, 0)


class VisitorLimits:
    """The traffic of every key, of the present day (UTC)."""

    def __init__(self, database: Database, replicas: Replicas | None) -> None:
        self._database, self._replicas = database, replicas
        self._traffic: dict[str, Traffic] = {}

    @contextlib.contextmanager
    def connection(self, principal: Principal) -> Iterator[Traffic]:
        """Count a request until it is answered, or a websocket; 429 if there are too many."""
        quota, traffic = principal.quota, self.of(principal)
        rate = quota.preview_requests_per_second
        if wait := traffic.bucket.seconds_until_free(rate, BURST_SECONDS * rate):
            text = f"the previews of this key may have {rate:g} requests per second"
            raise Problem(429, "rate_limited", text, retry_after=wait)
        if traffic.connections >= quota.preview_connections:
            text = f"the previews of this key have {traffic.connections} open connections"
            raise Problem(429, "rate_limited", f"{text}: wait for one to end", retry_after=1)
        self._require_volume(principal, traffic)
        traffic.bucket.tokens -= 1
        traffic.connections += 1
        traffic.requests += 1
        try:
            yield traffic
        finally:
            traffic.connections -= 1

    def count(self, principal: Principal, size: int) -> None:
        """Count bytes that are passed on; 429 if they are too many for the day."""
        traffic = self.of(principal)
        traffic.bytes += size
        if self._replicas is not None:
            self._replicas.spend("preview", principal.key, size)
        self._require_volume(principal, traffic)

    def of(self, principal: Principal) -> Traffic:
        """Return the traffic of a key today."""
        traffic = self._traffic.get(principal.key)
        if traffic is None:
            room = BURST_SECONDS * principal.quota.preview_requests_per_second
            traffic = self._traffic[principal.key] = Traffic(TokenBucket(max(1.0, room)))
        today = int(clock.now() // DAY_SECONDS)
        if traffic.day != today:
            query = (
                "SELECT * FROM preview_usage WHERE key = ? AND day = date(? * 86400, 'unixepoch')"
            )
            row = self._database.one(query, principal.key, today)
            traffic.saved = (row["requests"], row["bytes"]) if row else (0, 0)
            traffic.day, (traffic.requests, traffic.bytes) = today, traffic.saved
        return traffic

    def save(self) -> None:
        """Write the traffic of the day to the database."""
        query = (
            "INSERT INTO preview_usage VALUES (date(? * 86400, 'unixepoch'), ?, ?, ?) ON CONFLICT"
            " DO UPDATE SET requests = excluded.requests, bytes = excluded.bytes"
        )
        for key, traffic in self._traffic.items():
            if traffic.saved != (traffic.requests, traffic.bytes):
                traffic.saved = traffic.requests, traffic.bytes
                self._database.write(query, traffic.day, key, *traffic.saved)

    def _require_volume(self, principal: Principal, traffic: Traffic) -> None:
        most, used = principal.quota.preview_bytes_per_day, traffic.bytes
        if self._replicas is not None:
            used = max(used, int(self._replicas.spent("preview", principal.key)))
        if most is not None and used >= most:
            text = f"the previews of this key have used their {most:,} bytes of today (UTC)"
            raise used_today(text)
