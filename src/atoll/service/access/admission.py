"""What requests make the service hold in memory: counted before it is held, by tenant and in all.

    request ─▶ App opens a Holding of 0 bytes ─▶ ApiRequest.body grows it with each piece
            ─▶ ApiRequest.json resizes it to what the decoded body takes ─▶ released with the answer

Whatever outlives the request has a Holding of its own, opened by the object that keeps the bytes:

| object | holds | released |
| --- | --- | --- |
| `Execution` | inputs and output while it runs; events, result and displays after it | forgotten |
| `Context` | the shared memory of a context | the last sandbox that has it is gone |
| `HostedSession` | configuration, cells, commands of processes | ended |
| `Kernel`, a websocket | messages that wait, messages no socket has heard | answered, ended |
| `Spool` | an upload on disk, in the second budget | stored, or the client is gone |

A `Budget` has two limits: `each` for one tenant, `total` for all of them. `admit` and `grow` raise
before anything is counted: 413 if it could never fit, 429 if the tenant holds too much now, 503 if
all tenants together do. What can be dropped without harm, namely results of finished executions,
is dropped first: the tenant's own oldest, or for the total those of the tenant that keeps most.

SECURITY: a size comes from what has arrived or was measured, never from what a client says.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Self

from msgspec import Struct

from atoll.service.http.problems import Problem
from atoll.service.settings import variable

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.service.access.keys import Principal
    from atoll.service.settings import ServiceSettings

    Reclaim = Callable[[str | None], bool]

REJECTIONS = ("too_large", "tenant", "process")
RETRY_SECONDS = 2


class BudgetUse(Struct):
    """Bytes held, and their limits."""

    held_bytes: int
    max_bytes: int
    max_tenant_bytes: int


class Budget:
    """Bytes that tenants may make the service hold. Used by the event loop's thread alone."""

    def __init__(self, total: tuple[str, int], each: tuple[str, int], where: str) -> None:
        """`total` and `each` are settings: name and value; `where` is memory or disk."""
        self._total_name, self.total = total
        self._each_name, self.each = each[0], min(each[1], total[1])
        self._where = where
        self._tenants: Counter[str] = Counter()
        self._held = 0
        self.returned: deque[tuple[str, int]] = deque()
        """What is held no more: finalizers run in any thread, at any time."""
        self.reclaim: list[Reclaim] = []
        """Each drops something of a tenant, or with None of any, and returns whether it did."""
        self.rejected: Counter[str] = Counter(dict.fromkeys(REJECTIONS, 0))

    @property
    def held(self) -> int:
        """How many bytes are held."""
        self._collect()
        return self._held

    def held_by(self, tenant: str) -> int:
        """Return how many bytes a tenant holds."""
        self._collect()
        return self._tenants[tenant]

    def admit(self, principal: Principal | str, size: int, what: str) -> Holding:
        """Hold bytes for a tenant; Problem if they do not fit."""
        tenant = principal if isinstance(principal, str) else principal.tenant
        holding = Holding(self, tenant, what)
        if size:
            holding.grow(size)
        return holding

    def take(self, tenant: str, size: int, more: int, what: str) -> None:
        """Count `more` bytes for something that has `size` already; Problem if they do not fit."""
        if size + more > self.each:
            raise self._reject("too_large", what, size + more)
        if self.returned:
            self._collect()
        while self._tenants[tenant] + more > self.each:
            if not any(drop(tenant) for drop in self.reclaim):
                raise self._reject("tenant", what, more)
            self._collect()
        while self._held + more > self.total:
            if not any(drop(None) for drop in self.reclaim):
                raise self._reject("process", what, more)
            self._collect()
        self._tenants[tenant] += more
        self._held += more

    def describe(self) -> BudgetUse:
        """Return the figures for operators."""
        return BudgetUse(self.held, self.total, self.each)

    def _collect(self) -> None:
        while self.returned:
            tenant, size = self.returned.popleft()
            self._tenants[tenant] -= size
            self._held -= size
            if not self._tenants[tenant]:
                del self._tenants[tenant]

    def _reject(self, reason: str, what: str, size: int) -> Problem:
        self.rejected[reason] += 1
        where = self._where
        if reason == "too_large":
            text = f"{what} of {size:,} bytes is more than one key may have in {where}"
            raised = f"The service's operator can raise the limit: {variable(self._each_name)}"
            return Problem(413, "too_large", f"{text}, {self.each:,} bytes. {raised}")
        if reason == "tenant":
            text = f"no room in {where} for {what} ({size:,} bytes): the key has {self.each:,}"
            text += " bytes in all. Wait until other requests of it have ended"
            return Problem(429, where, text, retry_after=RETRY_SECONDS)
        text = f"the service has no room in {where} for {what} ({size:,} bytes) now: try again"
        return Problem(503, where, text, retry_after=RETRY_SECONDS)


class Holding:
    """Bytes that something holds until `release`, or until nothing refers to this object.

    It may be shared: then the last release counts.
    """

    __slots__ = ("__weakref__", "_budget", "_owners", "size", "tenant", "what")

    def __init__(self, budget: Budget, tenant: str, what: str) -> None:
        self._budget, self.tenant, self.what = budget, tenant, what
        self.size, self._owners = 0, 1

    def grow(self, more: int) -> None:
        """Hold more bytes; Problem if they do not fit, and then the size is unchanged."""
        if more > 0 and self._owners:
            self._budget.take(self.tenant, self.size, more, self.what)
            self.size += more

    def shrink(self, less: int) -> None:
        """Hold fewer bytes."""
        less = max(0, min(less, self.size))  # after its release it stays empty
        self.size -= less
        if less:
            self._budget.returned.append((self.tenant, less))

    def resize(self, size: int) -> None:
        """Hold exactly `size` bytes; Problem if they do not fit."""
        if size > self.size:
            self.grow(size - self.size)
        elif size < self.size:
            self.shrink(self.size - size)

    def fits(self, size: int) -> bool:
        """Hold exactly so many bytes if there is room; return whether there is."""
        try:
            self.resize(size)
        except Problem:
            return False
        return True

    def share(self) -> Self:
        """Return the same holding for one more owner, who releases it too."""
        self._owners += 1
        return self

    def release(self) -> None:
        """Hold nothing, after the last owner's call."""
        self._owners = max(0, self._owners - 1)
        if not self._owners and self.size:
            self.shrink(self.size)

    def __del__(self) -> None:
        if self.size:
            self._budget.returned.append((self.tenant, self.size))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.release()


def budgets(settings: ServiceSettings) -> tuple[Budget, Budget]:
    """Return the budgets of requests' memory, and of uploads on disk."""
    made = []
    for name, where in (("memory_bytes", "memory"), ("spool_bytes", "disk")):
        total, each = getattr(settings, name), getattr(settings, f"tenant_{name}")
        made.append(Budget((name, total), (f"tenant_{name}", each), where))
    return made[0], made[1]
