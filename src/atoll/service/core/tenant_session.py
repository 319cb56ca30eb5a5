"""One session as its tenant sees it: what it is, what it has used, when it ends."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from atoll.errors import AtollError
from atoll.files.direct import FolderFiles, close_all
from atoll.sandbox.context import Context
from atoll.service import clock
from atoll.service.core.history import History
from atoll.service.core.processes import Processes
from atoll.service.ids import new_id

if TYPE_CHECKING:
    from atoll.files.live import LiveFiles
    from atoll.hosting.client_callbacks import ClientCallbacks
    from atoll.hosting.sessions import Session
    from atoll.sandbox.base import BaseSandbox
    from atoll.service.access.admission import Budget, Holding
    from atoll.service.access.cpu import CpuMeter
    from atoll.service.access.keys import Principal
    from atoll.service.cluster.directory import SessionRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxFacts:
    """What stays the same of a session's sandbox, also while it is saved to disk."""

    isolation: str
    backend: str
    capabilities: list[str]

    @classmethod
    def of(cls, box: BaseSandbox) -> BoxFacts:
        """Return the facts of a sandbox."""
        known = sorted(map(str, box.capabilities))
        return cls(isolation=str(box.isolation), backend=box.backend, capabilities=known)


class HostedSession:
    """One session, and what its tenant is told of it."""

    def __init__(
        self,
        principal: Principal,
        session: Session,
        callbacks: ClientCallbacks,
        parent: HostedSession | None = None,
        facts: BoxFacts | None = None,
    ) -> None:
        """`facts`: what the sandbox of a session is like that is not in memory."""
        self.id, self.tenant, self.key = new_id("ses"), principal.tenant, principal.key
        self.principal = principal
        self.session, self.callbacks = session, callbacks
        self.parent = None if parent is None else parent.id
        self.name = ""
        self.created = self.used = clock.now()
        self.idle_seconds = self.max_seconds = 0.0
        self.metadata: dict[str, str] = {}
        self.marks: dict[str, tuple[str, float]] = {}
        self.children: list[str] = []
        self.history: History = History(None if parent is None else parent.history)
        self.rolled_back = ""
        """The checkpoint that it went back to last."""
        self.context_id: str | None = None
        self.executions, self.memory_bytes, self._cpu_before = 0, 0, 0.0
        self.meter: CpuMeter | None = None
        """Counts the CPU time that it uses in this process."""
        self.disk_bytes: int | None = None
        self.disk_measured = 0.0
        """When its disk was measured last."""
        self.over = False
        self.budget: Budget | None = None
        """What counts the memory that the session takes; None before it is kept."""
        self.held: Holding | None = None
        """What its configuration takes."""
        self.comes_back = True
        """Whether it goes on after a restart of the service, if it can be saved."""
        self.record: SessionRecord | None = None
        """What is written of it for other services, if they can take it over."""
        self.processes = Processes(self)
        limit = session.config.policy.file_size_bytes
        self._files: LiveFiles = FolderFiles(self._folders, limit)
        if facts is None:
            assert session.box is not None
            facts = BoxFacts.of(session.box)
            if not hasattr(session.box, "folders"):  # they are on another machine
                self._files = cast("LiveFiles", session.box.files)
        self.facts = facts

    def admit(self, size: int, what: str) -> Holding | None:
        """Hold bytes of the session's tenant; None if the session is nowhere counted."""
        return None if self.budget is None else self.budget.admit(self.tenant, size, what)

    @property
    def cpu_seconds(self) -> float:
        """The CPU time of all that ran in it, as last measured."""
        return self._cpu_before + (0.0 if self.meter is None else self.meter.total)

    @cpu_seconds.setter
    def cpu_seconds(self, before: float) -> None:
        self._cpu_before = before

    @property
    def files(self) -> LiveFiles:
        """Its files, usable while a cell runs."""
        self.touch()
        return self._files

    @property
    def idle_until(self) -> float:
        """The time at which it ends unless it is used before."""
        return self.used + self.idle_seconds

    @property
    def expires(self) -> float:
        """When it ends in any case."""
        return self.created + self.max_seconds

    def touch(self) -> None:
        """Note a use."""
        self.used = clock.now()

    @property
    def state(self) -> str:
        """Return running, paused (frozen, or saved to disk) or ended."""
        if self.over:
            return "ended"
        return "running" if self.session.live and not self.session.frozen else "paused"

    @property
    def paused_as(self) -> str | None:
        """Return how it is paused: `frozen` in memory, or `saved` to disk."""
        if self.state != "paused":
            return None
        return "frozen" if self.session.frozen else "saved"

    def usage(self) -> dict[str, Any]:
        """Return what it uses now, as far as the host counts it; disk as last measured.

        The peak is of the same measure as what is in use now, and never below it: processes beside
        the cells can hold more than any cell did.
        """
        measure = getattr(self.session.box, "usage_now", None)
        now = {} if measure is None else measure()
        self.memory_bytes = max(self.memory_bytes, now.get("memory_bytes") or 0)
        return {
            "cpu_seconds": self.cpu_seconds,
            "peak_memory_bytes": self.memory_bytes,
            "memory_bytes": now.get("memory_bytes"),
            "processes": now.get("processes"),
            "disk_bytes": self.disk_bytes,
        }

    async def measure_disk(self) -> None:
        """Measure the guest's disk; a session that is saved is not restored for this."""
        show = getattr(self.session.box, "folders", None)
        if show is None:
            return
        self.disk_measured = clock.now()
        with contextlib.suppress(AtollError, OSError):
            folders = await show(False)
            try:
                found = os.fstatvfs(next(iter(folders.values())))
            finally:
                close_all(folders)
            self.disk_bytes = (found.f_blocks - found.f_bfree) * found.f_frsize

    def describe(self) -> dict[str, Any]:
        """Return what its tenant may know."""
        now = clock.now()
        return {
            "id": self.id,
            "state": self.state,
            "paused_as": self.paused_as,
            "name": self.name,
            "isolation": self.facts.isolation,
            "backend": self.facts.backend,
            "capabilities": self.facts.capabilities,
            "context_shared": bool(getattr(self.session.box, "context_is_shared", False)),
            "created_at": self.created,
            "last_used_at": self.used,
            "idle_seconds_now": 0.0 if not self.session.idle else max(0.0, now - self.used),
            "idle_seconds": self.idle_seconds,
            "max_seconds": self.max_seconds,
            "idle_expires_at": min(self.idle_until, self.expires),
            "expires_at": self.expires,
            "parent": self.parent,
            "children": list(self.children),
            "busy": not self.session.idle,
            "executions": self.executions,
            "usage": self.usage(),
            "context": self._context(),
            "policy": self.session.config.policy.snapshot(),
            "timeout_ms": self.session.config.timeout_ms,
            "metadata": self.metadata,
            "marks": [
                {"id": mark, "name": name, "created_at": made}
                for mark, (name, made) in self.marks.items()
            ],
        }

    def _context(self) -> dict[str, Any] | None:
        context = self.session.config.context
        if context is None:
            return None
        length = context.length if isinstance(context, Context) else None
        length = len(context) if isinstance(context, str) else length
        return {"id": self.context_id, "length": length}

    async def _folders(self, changing: bool) -> dict[str, int]:  # noqa: FBT001 - as it is called
        self.touch()
        return await self.session.folders(changing=changing)
