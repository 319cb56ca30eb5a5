"""One session as its tenant sees it: what it is, what it has used, when it ends."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Literal, cast

from msgspec import Struct

from atoll.errors import AtollError
from atoll.files.direct import FolderFiles, close_all
from atoll.sandbox.context import Context
from atoll.service import clock
from atoll.service.core.history import History
from atoll.service.core.processes import Processes

if TYPE_CHECKING:
    from atoll.files.live import LiveFiles
    from atoll.hosting.client_callbacks import ClientCallbacks
    from atoll.hosting.sessions import Session
    from atoll.sandbox.base import BaseSandbox
    from atoll.service.access.admission import Budget, Holding
    from atoll.service.access.cpu import CpuMeter
    from atoll.service.access.keys import Principal
    from atoll.service.cluster.directory import SessionRecord


class BoxFacts(Struct, frozen=True, kw_only=True):
    """What stays the same of a session's sandbox, also while it is saved to disk."""

    isolation: str
    backend: str
    capabilities: list[str]

    @classmethod
    def of(cls, box: BaseSandbox) -> BoxFacts:
        """Return the facts of a sandbox."""
        known = sorted(map(str, box.capabilities))
        return cls(isolation=str(box.isolation), backend=box.backend, capabilities=known)


class SharedFacts(Struct, kw_only=True):
    """What every process that can go on with a session has to know of it."""

    id: str
    tenant: str
    parent: str | None = None
    name: str = ""
    idle_seconds: float
    max_seconds: float
    metadata: dict[str, str] = {}
    context_id: str | None = None
    """The context that was uploaded for it, if there is one."""


class SessionFacts(SharedFacts, kw_only=True):
    """What the service that has a session knows of it, also after a restart."""

    key: str
    created: float
    executions: int = 0
    cpu_seconds: float = 0.0
    """What it used in earlier processes of the service."""
    memory_bytes: int = 0
    """The most that it has used."""
    public_ports: list[int] = []
    """Ports whose preview anybody may visit."""
    preview_generation: int = 0
    """How often a preview was withdrawn: earlier links are not valid."""


class SessionUsage(Struct, kw_only=True):
    """What a session uses, as far as the host counts it; disk as last measured."""

    cpu_seconds: float
    peak_memory_bytes: int
    memory_bytes: int | None
    processes: int | None
    disk_bytes: int | None


class SessionContext(Struct):
    """The context of a session: its id if it was uploaded, its length if it is text."""

    id: str | None
    length: int | None


class SessionPolicy(Struct, kw_only=True):
    """The limits of a session."""

    memory_bytes: int | None
    max_processes: int | None
    cpu_seconds: float | None
    disk_bytes: int | None
    file_size_bytes: int | None
    stdout_max_bytes: int | None
    stderr_max_bytes: int | None
    fuel_budget: int | None


class MarkInfo(Struct):
    """A checkpoint of a session."""

    id: str
    name: str
    created_at: float


class SessionInfo(Struct, kw_only=True):
    """A session as its tenant sees it."""

    id: str
    state: Literal["running", "paused", "ended"]
    paused_as: Literal["frozen", "saved"] | None
    name: str
    isolation: str
    backend: str
    capabilities: list[str]
    context_shared: bool
    created_at: float
    last_used_at: float
    idle_seconds_now: float
    idle_seconds: float
    max_seconds: float
    idle_expires_at: float
    expires_at: float
    parent: str | None
    children: list[str]
    busy: bool
    executions: int
    usage: SessionUsage
    context: SessionContext | None
    policy: SessionPolicy
    timeout_ms: float
    metadata: dict[str, str]
    marks: list[MarkInfo]


class HostedSession:
    """A session of a tenant: its facts, and what this process has of it."""

    def __init__(
        self,
        principal: Principal,
        session: Session,
        callbacks: ClientCallbacks,
        facts: SessionFacts,
        *,
        parent: HostedSession | None = None,
        box_facts: BoxFacts | None = None,
    ) -> None:
        """`box_facts`: those of a sandbox that is not in memory."""
        self.id, self.tenant, self.key, self.facts = facts.id, facts.tenant, facts.key, facts
        self.principal = principal
        self.session, self.callbacks = session, callbacks
        self.used = clock.now()
        self.marks: dict[str, MarkInfo] = {}
        self.children: list[str] = []
        self.history: History = History(None if parent is None else parent.history)
        self.rolled_back = ""
        """The checkpoint that it went back to last."""
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
        """Its record for other services, if they can take it over."""
        self.processes = Processes(self)
        limit = session.config.policy.file_size_bytes
        self._files: LiveFiles = FolderFiles(self._folders, limit)
        if box_facts is None:
            assert session.box is not None
            box_facts = BoxFacts.of(session.box)
            if not hasattr(session.box, "folders"):  # they are on another machine
                self._files = cast("LiveFiles", session.box.files)
        self.box_facts = box_facts

    def admit(self, size: int, what: str) -> Holding | None:
        """Hold bytes of the session's tenant; None if the session is nowhere counted."""
        return None if self.budget is None else self.budget.admit(self.tenant, size, what)

    @property
    def cpu_seconds(self) -> float:
        """The CPU time of all that ran in it, as last measured."""
        return self.facts.cpu_seconds + (0.0 if self.meter is None else self.meter.total)

    @property
    def files(self) -> LiveFiles:
        """Its files, usable while a cell runs."""
        self.touch()
        return self._files

    @property
    def idle_until(self) -> float:
        """The time at which it ends unless it is used before."""
        return self.used + self.facts.idle_seconds

    @property
    def expires(self) -> float:
        """When it ends in any case."""
        return self.facts.created + self.facts.max_seconds

    def touch(self) -> None:
        """Note a use."""
        self.used = clock.now()

    @property
    def state(self) -> Literal["running", "paused", "ended"]:
        """Return running, paused (frozen, or saved to disk) or ended."""
        if self.over:
            return "ended"
        return "running" if self.session.live and not self.session.frozen else "paused"

    @property
    def paused_as(self) -> Literal["frozen", "saved"] | None:
        """Return how it is paused: `frozen` in memory, or `saved` to disk."""
        if self.state != "paused":
            return None
        return "frozen" if self.session.frozen else "saved"

    def usage(self) -> SessionUsage:
        """Return what it uses now.

        The peak is of the same measure as what is in use now, and never below it: processes beside
        the cells can hold more than any cell did.
        """
        measure = getattr(self.session.box, "usage_now", None)
        now: dict[str, int | None] = {} if measure is None else measure()
        memory = now.get("memory_bytes")
        self.facts.memory_bytes = max(self.facts.memory_bytes, memory or 0)
        return SessionUsage(
            cpu_seconds=self.cpu_seconds,
            peak_memory_bytes=self.facts.memory_bytes,
            memory_bytes=memory,
            processes=now.get("processes"),
            disk_bytes=self.disk_bytes,
        )

    async def measure_disk(self) -> None:
        """Measure the guest's disk; a session that is saved is not restored for this."""
        show = getattr(self.session.box, "folders", None)
        if show is None:
            return
        self.disk_measured = clock.now()
        with contextlib.suppress(AtollError, OSError):
            folders = await show(False)
            try:
                disk = os.fstatvfs(next(iter(folders.values())))
            finally:
                close_all(folders)
            self.disk_bytes = (disk.f_blocks - disk.f_bfree) * disk.f_frsize

    def describe(self) -> SessionInfo:
        """Return what its tenant may know."""
        facts, config, idle = self.facts, self.session.config, self.session.idle
        return SessionInfo(
            id=self.id,
            state=self.state,
            paused_as=self.paused_as,
            name=facts.name,
            isolation=self.box_facts.isolation,
            backend=self.box_facts.backend,
            capabilities=self.box_facts.capabilities,
            context_shared=bool(getattr(self.session.box, "context_is_shared", False)),
            created_at=facts.created,
            last_used_at=self.used,
            idle_seconds_now=max(0.0, clock.now() - self.used) if idle else 0.0,
            idle_seconds=facts.idle_seconds,
            max_seconds=facts.max_seconds,
            idle_expires_at=min(self.idle_until, self.expires),
            expires_at=self.expires,
            parent=facts.parent,
            children=list(self.children),
            busy=not idle,
            executions=facts.executions,
            usage=self.usage(),
            context=self._context(),
            policy=SessionPolicy(**config.policy.snapshot()),  # type: ignore[arg-type]
            timeout_ms=config.timeout_ms,
            metadata=facts.metadata,
            marks=list(self.marks.values()),
        )

    def _context(self) -> SessionContext | None:
        context = self.session.config.context
        if context is None:
            return None
        length = context.length if isinstance(context, Context) else None
        length = len(context) if isinstance(context, str) else length
        return SessionContext(self.facts.context_id, length)

    async def _folders(self, changing: bool) -> dict[str, int]:  # noqa: FBT001 - as it is called
        self.touch()
        return await self.session.folders(changing=changing)
