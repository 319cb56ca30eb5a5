"""The service without HTTP: one object that holds sandboxes, keys, quotas, and what runs.

request ─▶ app ─▶ routes ─▶ Service ─▶ sessions of the daemon's table ─▶ pool
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from atoll.concurrency.background import Background
from atoll.concurrency.shares import OWNER, ConcurrencyLimit, FairThreads
from atoll.config import SandboxConfig
from atoll.errors import AtollError, FleetError
from atoll.hosting.client_callbacks import ClientCallbacks
from atoll.hosting.limits import DaemonLimits
from atoll.hosting.session_table import SessionTable
from atoll.hosting.sessions import open_storage
from atoll.log import SandboxLogger
from atoll.sandbox.wire import options
from atoll.service import clock
from atoll.service.access import permissions
from atoll.service.access.admission import budgets
from atoll.service.access.audit import AuditLog
from atoll.service.access.cpu import LOOK_SECONDS, CpuMeters
from atoll.service.access.keys import Keys
from atoll.service.access.quotas import Quotas
from atoll.service.api.overview import Samples, Tiers
from atoll.service.cluster.forward import Forwarder
from atoll.service.cluster.replicas import Replicas
from atoll.service.console.signin import SignIns
from atoll.service.core.agent_runs import Runs
from atoll.service.core.contexts import Contexts
from atoll.service.core.executions import OVERHEAD, Execution, Executions
from atoll.service.core.sessions import STOPPED, Sessions
from atoll.service.core.work import RunResult, SessionRequest
from atoll.service.dialects.e2b.dialect import E2B
from atoll.service.dialects.jupyter.gateway import Gateway
from atoll.service.dialects.librechat.dialect import LibreChat
from atoll.service.dialects.sandboxfusion.running import SandboxFusion
from atoll.service.http.problems import Problem
from atoll.service.http.streams import Streams
from atoll.service.previews.previews import Previews
from atoll.service.storage.blobs import blobs
from atoll.service.storage.database import Database
from atoll.service.storage.idempotency import Answer, IdempotencyKeys
from atoll.service.storage.objects import Objects
from atoll.service.storage.restart import SavedSessions
from atoll.service.storage.stored import StoredBytes
from atoll.service.telemetry.metrics import Metrics
from atoll.service.telemetry.tracing import Traces
from atoll.text.amounts import counted
from atoll.types import SandboxResult

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from atoll.sandbox.base import BaseSandbox
    from atoll.service.access.admission import Holding
    from atoll.service.access.keys import Principal
    from atoll.service.cluster.fleet import FleetSandboxes
    from atoll.service.core.tenant_session import HostedSession
    from atoll.service.core.work import Request
    from atoll.service.http.bodies import ContextOf, Sandbox
    from atoll.service.settings import ServiceSettings
    from atoll.service.storage.idempotency import IdempotencyScope

    Configured = tuple[SandboxConfig, ClientCallbacks]

Opener = Callable[..., Awaitable["BaseSandbox"]]
"""Opens a sandbox for a configuration, and for the code that it will run if that is known."""
Runner = Callable[..., Awaitable[SandboxResult]]
"""Runs code in a fresh sandbox of its own: Pool.run."""
SWEEP_SECONDS = 5.0
EXPIRY_SECONDS = 0.25
"""How late a session may end at its timeout."""
NEVER = 10**9
MAX_WAITING_THREADS = 64
"""File operations, searches and the like of one key that wait; further requests are refused."""
_LOG = logging.getLogger("atoll.service")
_QUIET = SandboxLogger(None)


class Service:
    """Everything that requests share."""

    def __init__(
        self,
        settings: ServiceSettings,
        opener: Opener,
        pool_stats: Callable[[], Tiers] = dict,
        runner: Runner | None = None,
        fleet: FleetSandboxes | None = None,
    ) -> None:
        self.settings, self.opener, self.pool_stats = settings, opener, pool_stats
        self.runner, self.fleet = runner, fleet
        self.draining = self.stopping = self.urgent = False
        self.started = clock.now()
        self.isolation: str | None = None
        self.why_not = ""
        self._background, self.threads = Background(_LOG), FairThreads()
        self.memory, self.disk = budgets(settings)
        self.database = Database(settings.folder)
        self.keys, self.quotas = Keys(self.database), Quotas(self.database)
        self.audit = AuditLog(self.database)
        self.signins = SignIns(self.keys, self.database)
        self.streams = Streams(self.keys)
        self.answers, self.stored = IdempotencyKeys(self.database), StoredBytes(self.database)
        self.objects = Objects(blobs(settings), self.database, self.stored)
        self.contexts = Contexts(self.objects, self.memory)
        self.executions = Executions(settings, self.memory)
        self.runs = Runs(settings.folder, self.database, self.stored)
        self.samples = Samples()
        self.limit = ConcurrencyLimit(settings.max_running, settings.max_queue)
        self.traces, self.metrics = Traces(settings.traces), Metrics(self)
        self.replicas = Replicas(settings) if settings.redis else None
        self.forwarder = Forwarder(self.traces) if settings.redis or fleet else None
        self.cpu = CpuMeters(self.quotas, self._background, self.replicas)
        limits = _table_limits(settings, on_fleet=fleet is not None)
        fresh = self.database.one("SELECT 1 FROM saved_sessions") is None
        aside = settings.folder / "paused.sqlite3"
        storage, self._store = open_storage(aside, limits, clock.now, fresh=fresh)
        self.table = SessionTable(opener, storage, limits)
        self.sessions = Sessions(self)
        self.librechat, self.e2b, self.gateway = LibreChat(self), E2B(self), Gateway(self)
        self.sandboxfusion = SandboxFusion()
        self.previews = Previews(self)
        self._restart = SavedSessions(self, self._store)
        self._sweeping: list[asyncio.Task[Any]] = []

    async def open(self) -> None:
        """Open one sandbox to learn what isolation there is; begin to look after sessions."""
        asyncio.get_running_loop().set_default_executor(self.threads)
        self.runs.start()
        if lost := self.database.start():
            _LOG.warning("%s of an earlier process ended with it", counted(lost, "sessions"))
        if self.fleet is not None:
            await self.fleet.keys.compare(self.database)
        try:
            code = () if self.fleet is None else ("pass",)  # it needs no state there
            box = await self.opener(SandboxConfig(backend="native"), *code)
            self.isolation = str(box.isolation)
            await box.destroy()
        except AtollError as exc:
            self.why_not = str(exc)
            _LOG.warning("no sandbox can be opened: %s", exc)
        if self.fleet is None and (again := await self._restart.restore()):
            _LOG.info("going on with %s, saved when it stopped", counted(again, "sessions"))
        await self.announce()
        pause = min(SWEEP_SECONDS, self.settings.idle_seconds / 2)
        self._sweeping = [
            self._background.watch("the service", lambda: pause, *self._sweeps()),
            self._background.watch("expiry", lambda: EXPIRY_SECONDS, self.sessions.end_expired),
            self._background.watch("CPU time", lambda: LOOK_SECONDS, self.cpu.sweep_limited),
        ]

    async def drain(self) -> None:
        """Refuse new work, wait for running work, and cancel it when `drain_seconds` are over."""
        self.draining = self.stopping = True
        running = [run.task for run in self.executions.running if run.task is not None]
        if running:
            _, late = await asyncio.wait(running, timeout=self.settings.drain_seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=5)

    async def stop(self) -> None:
        """Save sessions, unless it is urgent; end those that cannot be saved; close the files."""
        self.draining = self.stopping = True
        await self.previews.close()
        self.runs.stop()
        for task in self._sweeping:
            task.cancel()
        for execution in self.executions.running:
            if execution.task is not None:
                execution.task.cancel()
        if self.fleet is None and not self.urgent:
            await self._restart.save()
        await self.sessions.end_all(STOPPED)
        self.e2b.sweep()
        await self.gateway.sweep()
        await self._background.wait(5)
        with contextlib.suppress(Exception):
            self.quotas.save()
            self.previews.limits.save()
        for peer in (self.replicas, self.forwarder):
            if peer is not None:
                await peer.close()
        await asyncio.to_thread(self.traces.close)
        self._store.close_all()
        self.database.close()

    def require_accepting(self) -> None:
        """Refuse new work while the service is about to stop."""
        if self.draining:
            text = "the service is about to stop and takes no new work: try again later"
            raise Problem(503, "draining", text, retry_after=5)

    def act_for(self, principal: Principal) -> None:
        """Let this task, and what it starts, use the share of a key; 429 if too much waits."""
        threads = self.threads
        if threads.share.waiting and threads.waiting_of(principal.key) >= MAX_WAITING_THREADS:
            text = f"{MAX_WAITING_THREADS} operations of the key wait for a thread"
            raise Problem(429, "rate_limited", f"{text}: send fewer at a time", retry_after=1)
        OWNER.set(principal.key)

    async def configure(self, principal: Principal, given: Sandbox, **fields: Any) -> Configured:
        """Return the configuration that a request describes, and what asks its client for tools."""
        callbacks = ClientCallbacks()
        fields |= given.fields(principal.quota, self.settings.max_output_bytes)
        fields |= permissions.wanted(given, self.settings)
        fields |= callbacks.functions(given.asks())
        context = await self.contexts.give(principal, callbacks, given.context)
        return SandboxConfig(**fields, context=context, logger=_QUIET), callbacks

    async def configure_again(
        self, principal: Principal, wire: dict[str, Any], context: ContextOf | None
    ) -> Configured:
        """Return the configuration of a session that another process opened, as `configure` did."""
        callbacks = ClientCallbacks()
        given = await self.contexts.give(principal, callbacks, context)
        functions = callbacks.functions(wire)
        config = options.from_wire(wire, logger=_QUIET, context=given, **functions)
        return dataclasses.replace(config, python=None), callbacks

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something that no request waits for."""
        self._background.spawn(work)

    def start(
        self,
        principal: Principal,
        request: Request,
        *,
        inputs: Holding | None = None,
        once: IdempotencyScope | None = None,
        kind: type[Execution] = Execution,
    ) -> Execution:
        """Start an execution; Problem if the service cannot hold it.

        `inputs` is what the request holds that asks for it: code, files, a context. `once` is the
        request's idempotency key, which is new.
        """
        held = self.memory.admit(principal, OVERHEAD, "the output and result of an execution")
        execution = kind(self, principal, request, held)
        if once is not None:
            execution.key = once.digest
            self.answers.begin(once, execution, self.stored.reserve(principal))
        if inputs is not None:
            execution.inputs = inputs.share()
        if isinstance(request, SessionRequest) and request.kept:
            request.hosted.history.add(execution, request.verb, request.text)
        execution.task = task = asyncio.ensure_future(execution.run())
        self.executions.add(execution)
        task.add_done_callback(functools.partial(self._end, execution, once))
        return execution

    def _end(self, execution: Execution, once: IdempotencyScope | None, _task: object) -> None:
        self.executions.end(execution)
        if once is not None:
            refused = execution.status in (400, 403, 429, 503) and not execution.has_run
            answer = None if refused else Answer(execution.status, execution.body)
            self.answers.finish(once, answer)

    def ended(
        self, execution: Execution, result: SandboxResult, cpu_seconds: float = 0.0
    ) -> RunResult:
        """Count an execution whose code has ended; return its result as readers see it.

        `cpu_seconds` is what no CpuMeter has counted.
        """
        execution.displays = result.displays
        self.quotas.executed(execution.principal, cpu_seconds)
        if self.replicas is not None and cpu_seconds:
            self.spawn(self.replicas.used_cpu(execution.principal.key, cpu_seconds))
        answer = RunResult.of(execution, result)
        self.metrics.executed(answer)
        return answer

    async def announce(self, *changed: HostedSession) -> None:
        """Say to other services what this one has, and what these sessions are like now."""
        if self.fleet is not None:
            for hosted in changed:
                try:
                    await self.fleet.record(hosted)
                except FleetError:  # the store is full, or away
                    if hosted.record is None:
                        await self.sessions.end(hosted, "it could not be recorded")
                    raise
        if self.replicas is not None:
            running = [run.id for run in self.executions.running]
            await self.replicas.announce([*self.sessions.idents, *self.gateway.idents, *running])

    async def share_keys(self) -> None:
        """Let the other services in front of a fleet know of keys made or revoked here."""
        if self.fleet is not None:
            await self.fleet.keys.compare_now_and_then(self.database)

    async def refresh(self) -> None:
        """Refresh the state of the fleet."""
        if self.fleet is not None:
            await self.fleet.refresh()

    def _sweeps(self) -> tuple[Callable[[], Awaitable[None] | None], ...]:
        """Return the periodic tasks; a task that fails does not stop the others."""
        steps: list[Callable[[], Awaitable[None] | None]] = [
            self.sessions.sweep,
            self.cpu.sweep,
            self.audit.sweep,
            self.table.sweep,
            self.streams.end_refused,
            self.announce,
            self.executions.sweep,
            self.e2b.sweep,
            self.gateway.sweep,
            self.objects.sweep,
            self.runs.sweep,
            functools.partial(self.samples.take, self),
            self.quotas.save,
            self.previews.limits.save,
            functools.partial(self.database.sweep, self.settings.idempotency_seconds),
        ]
        if self.fleet is not None:
            cut_off = functools.partial(self.fleet.part_from_cut_off, self)
            steps += [self.refresh, self.share_keys, cut_off]
        return tuple(steps)


def _table_limits(settings: ServiceSettings, *, on_fleet: bool) -> DaemonLimits:
    """Return the limits of the table of sessions; idle ones are ended by the service itself."""
    most = settings.max_sessions
    live = most if on_fleet else settings.max_live
    return DaemonLimits(
        max_sessions=most, max_live=live, idle_seconds=NEVER, keep_seconds=settings.max_seconds
    )
