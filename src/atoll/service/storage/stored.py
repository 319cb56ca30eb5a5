"""What tenants have on disk, within `stored_bytes` of their keys: reserved before it is written.

Counted are states, contexts and files, trajectories of runs, and answers kept by idempotency key.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Self

from atoll.service.http.problems import Problem

if TYPE_CHECKING:
    from atoll.service.access.keys import Principal
    from atoll.service.storage.database import Database

ANSWER_BYTES = 300
"""What a kept answer takes besides its body."""
_USED = f"""SELECT
    (SELECT COALESCE(SUM(size), 0) FROM objects WHERE tenant = :tenant)
  + (SELECT COALESCE(SUM(size), 0) FROM run_sizes WHERE tenant = :tenant)
  + (SELECT COALESCE(SUM({ANSWER_BYTES} + COALESCE(length(body), 0)), 0) FROM answers
     WHERE tenant = :tenant) AS total"""  # noqa: S608 - a number of ours


class StoredBytes:
    """Bytes that each tenant has stored or is uploading."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reserved: Counter[str] = Counter()
        self._known: dict[str, tuple[int, int]] = {}
        """By tenant: the count of the database's changes, and the bytes used then."""

    def used(self, tenant: str) -> int:
        """Return how many bytes a tenant has, those on their way included."""
        changes, used = self._known.get(tenant, (-1, 0))
        if changes != self._database.changes:
            used = int(self._database.all(_USED, {"tenant": tenant})[0]["total"])
            self._known = {**self._known, tenant: (self._database.changes, used)}
            self._known = {} if len(self._known) > 1000 else self._known
        return used + self._reserved[tenant]

    def reserve(self, principal: Principal) -> Reservation:
        """Return room for something that is about to be stored: none yet."""
        return Reservation(self, principal)

    def take(self, principal: Principal, more: int) -> None:
        """Reserve bytes; 403 if the tenant would have more than its key may store."""
        most = principal.quota.stored_bytes
        if self.used(principal.tenant) + more > most:
            text = f"the key may store {most:,} bytes in all: delete states, contexts or runs first"
            raise Problem(403, "quota", text)
        self._reserved[principal.tenant] += more

    def give_back(self, tenant: str, size: int) -> None:
        """End a reservation: the bytes were stored, or never will be."""
        self._reserved[tenant] -= size
        if not self._reserved[tenant]:
            del self._reserved[tenant]


class Reservation:
    """Room for bytes on their way, until `release`."""

    def __init__(self, stored: StoredBytes, principal: Principal) -> None:
        self._stored, self._principal, self._size = stored, principal, 0

    def grow(self, more: int) -> None:
        """Reserve more bytes; 403 if they do not fit."""
        self._stored.take(self._principal, more)
        self._size += more

    def release(self) -> None:
        """End the reservation, in the same step in which a row of the database counts the bytes."""
        self._stored.give_back(self._principal.tenant, self._size)
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.release()
