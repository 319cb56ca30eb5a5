"""CPU time of sandboxes, counted towards the day of the key that they belong to.

The host's own counters are read, of all processes of a sandbox: what shell commands, processes
beside the cells and threads between two cells use is counted as a cell's time is. Sandboxes of a
key that has used up its day, and compute on, are stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from atoll.errors import AtollError
from atoll.service.http.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atoll.concurrency.background import Background
    from atoll.launch.handshake import CpuReading
    from atoll.sandbox.base import BaseSandbox
    from atoll.service.access.keys import Principal
    from atoll.service.access.quotas import Quotas
    from atoll.service.cluster.replicas import Replicas

READ_SECONDS = 2.0
"""How long a counter may take to answer."""
LOOK_SECONDS = 1.0
"""How often sandboxes of keys with a limit are looked at."""
IDLE_CPU_SECONDS = 0.05
"""What a sandbox that is left alone may use between two looks at it."""


class CpuMeter:
    """The CPU time of one sandbox that has not been counted yet."""

    def __init__(
        self,
        principal: Principal,
        box: Callable[[], BaseSandbox | None],
        stop: Callable[[Problem], Awaitable[None]],
    ) -> None:
        """`stop` is called when the key has no CPU time left, and the sandbox uses more."""
        self.principal, self._box, self.stop = principal, box, stop
        self.stopped: Problem | None = None
        """Why the sandbox was stopped; None if it was not."""
        self.total = 0.0
        """CPU seconds counted so far."""
        self._last: CpuReading | None = None
        self._reading = asyncio.Lock()

    @property
    def limited(self) -> bool:
        """Whether the CPU time of the key is limited."""
        return self.principal.quota.cpu_seconds_per_day is not None

    async def take(self, total: float = 0.0) -> float:
        """Return what the sandbox used since the last time; at least what makes up this `total`.

        A guest that was started in place of another counts from zero.
        """
        async with self._reading:
            last, self._last = self._last, await self._read()
            used = 0.0
            if (now := self._last) is not None:
                known = last is not None and last.guest is now.guest
                used = now.seconds - last.seconds if known and last else now.seconds
            used = max(used, total - self.total)
            self.total += used
            return used

    async def _read(self) -> CpuReading | None:
        read = getattr(self._box(), "cpu_reading", None)
        if read is None:  # there is no guest now, or it is on another machine
            return None
        result: CpuReading | None = None
        with contextlib.suppress(AtollError, OSError, TimeoutError):
            async with asyncio.timeout(READ_SECONDS):
                result = await read()
        return result


class CpuMeters:
    """The meters of all sandboxes of a service."""

    def __init__(self, quotas: Quotas, background: Background, replicas: Replicas | None) -> None:
        self._quotas, self._background, self._replicas = quotas, background, replicas
        self._open: set[CpuMeter] = set()

    def add(self, meter: CpuMeter) -> None:
        """Begin to look at a sandbox again and again."""
        self._open.add(meter)

    def remove(self, meter: CpuMeter) -> None:
        """Stop looking at a sandbox."""
        self._open.discard(meter)

    async def charge(
        self, meter: CpuMeter, principal: Principal | None = None, total: float = 0.0
    ) -> float:
        """Count what a sandbox used since the last time, towards the day of a key; return it.

        `total` is what it has used at least, in case that its counters are gone.
        """
        seconds = await meter.take(total)
        self.count(principal or meter.principal, seconds)
        return seconds

    def count(self, principal: Principal, seconds: float) -> None:
        """Count CPU time towards the day of a key, in all services."""
        if seconds > 0:
            self._quotas.used_cpu(principal, seconds)
            if self._replicas is not None:
                self._background.spawn(self._replicas.used_cpu(principal.key, seconds))

    async def sweep(self) -> None:
        """Count what every sandbox used; stop those that use what their keys have not."""
        for meter in list(self._open):
            await self._look_at(meter)

    async def sweep_limited(self) -> None:
        """Do the same for keys whose CPU time is limited."""
        for meter in [meter for meter in self._open if meter.limited]:
            await self._look_at(meter)

    async def _look_at(self, meter: CpuMeter) -> None:
        seconds = await self.charge(meter)
        if seconds <= IDLE_CPU_SECONDS or not meter.limited or meter not in self._open:
            return
        try:
            self._quotas.require_cpu(meter.principal)
            if self._replicas is not None:
                await self._replicas.check_cpu(meter.principal)
        except Problem as exc:
            self.remove(meter)
            meter.stopped = exc
            await meter.stop(exc)
