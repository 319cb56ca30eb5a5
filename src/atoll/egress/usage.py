"""Counts the guest's requests and bytes against its limits, and lists its requests."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from atoll.egress.rules import RefusedError, UnreachableError
from atoll.network import NetworkSpent, NetworkUse

if TYPE_CHECKING:
    from atoll.network import NetworkPolicy, NetworkRequest

MOST_LISTED = 1000
"""Most requests in the result of one execution."""
PATH_LENGTH = 500


class Budget:
    """Requests and bytes of a sandbox and its clones together."""

    def __init__(self, policy: NetworkPolicy) -> None:
        self._policy = policy
        self._spent = policy.spent or NetworkSpent()

    @property
    def spent(self) -> bool:
        """Whether no request is left."""
        most = self._policy.max_requests
        return most is not None and self._spent.requests >= most

    def count_request(self) -> None:
        """Count a request, also an invalid one; RefusedError if none is left."""
        most_requests, most_bytes = self._policy.max_requests, self._policy.max_bytes
        if self.spent:
            raise RefusedError(f"this sandbox has used its max_requests={most_requests}", 429)
        self._spent.requests += 1
        if most_bytes is not None and self._spent.bytes >= most_bytes:
            raise RefusedError(f"this sandbox has used its max_bytes={most_bytes}", 429)

    def count_bytes(self, size: int) -> None:
        """Count bytes to or from a server; RefusedError once they are more than allowed."""
        self._spent.bytes += size
        most = self._policy.max_bytes
        if most is not None and self._spent.bytes > most:
            raise RefusedError(f"this sandbox has used its max_bytes={most}", 429)


@dataclass(slots=True)
class Traffic:
    """The bytes of one request, counted for it and for the budget."""

    budget: Budget
    sent: int = 0
    received: int = 0
    redacted: int = 0

    def count_sent(self, size: int) -> None:
        """Count bytes to the server."""
        self.sent += size
        self.budget.count_bytes(size)

    def count_received(self, size: int) -> None:
        """Count bytes from the server."""
        self.received += size
        self.budget.count_bytes(size)


class Log:
    """Adds each request to the lists of all sandboxes that share the proxy."""

    def __init__(self) -> None:
        self.open_entries: list[Entry] = []
        self._lists: list[RequestList] = []

    def new_list(self) -> RequestList:
        """Return a list that gets every request from now on."""
        one = RequestList(self)
        self._lists.append(one)
        return one

    def end_list(self, one: RequestList) -> None:
        """Add no more requests to a list."""
        self._lists.remove(one)

    def open(self, entry: Entry) -> None:
        """Record a connection that may stay open for long."""
        self.open_entries.append(entry)

    def add(self, entry: Entry) -> None:
        """Record a request that has ended."""
        if entry in self.open_entries:
            self.open_entries.remove(entry)
        for one in self._lists:
            one.add(entry)


class RequestList:
    """The requests since the last result of one sandbox."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._kept: list[NetworkRequest] = []
        self._unlisted = 0
        self._reported: dict[Entry, tuple[int, int]] = {}
        """Open connections that were listed before, with their bytes at that time."""

    def add(self, entry: Entry) -> None:
        """List a request that has ended, without the bytes that were listed before."""
        before = self._reported.pop(entry, None)
        if before is not None and before == entry.bytes and not entry.ended_early:
            return
        if len(self._kept) < MOST_LISTED:
            self._kept.append(entry.finished(*(before or (0, 0))))
        else:
            self._unlisted += 1

    def take(self) -> NetworkUse:
        """Return the requests since the last call, and the new bytes of open connections."""
        for entry in self._log.open_entries:
            if self._reported.get(entry) != entry.bytes:
                before, now = self._reported.get(entry, (0, 0)), entry.bytes
                self._kept.append(entry.finished(*before))
                self._reported[entry] = now
        use = NetworkUse(requests=tuple(self._kept), unlisted=self._unlisted)
        self._kept, self._unlisted = [], 0
        return use


class Entry:
    """The record of one request while it runs."""

    def __init__(self, asked: NetworkRequest, budget: Budget) -> None:
        self.asked = asked
        self.traffic = Traffic(budget)
        self.status: int | None = None
        self.refused: str | None = None
        self.failed: str | None = None
        self._started = time.monotonic()

    @property
    def bytes(self) -> tuple[int, int]:
        """Sent and received so far."""
        return self.traffic.sent, self.traffic.received

    @property
    def ended_early(self) -> bool:
        """Whether it was refused, cut off, or failed."""
        return (self.refused or self.failed) is not None

    def refuse(self, why: RefusedError) -> None:
        """Record why there is no response: refused by the policy, or the server failed."""
        if isinstance(why, UnreachableError):
            self.failed = why.reason
        else:
            self.refused = why.reason

    def finished(self, sent_before: int = 0, received_before: int = 0) -> NetworkRequest:
        """Return the finished record, without the bytes that were listed before."""
        return replace(
            self.asked,
            path=self.asked.path[:PATH_LENGTH],
            status=self.status,
            sent=self.traffic.sent - sent_before,
            received=self.traffic.received - received_before,
            refused=self.refused,
            failed=self.failed,
            redacted=self.traffic.redacted,
            duration_ms=round((time.monotonic() - self._started) * 1000, 3),
        )
