"""The service without HTTP: one object that holds sandboxes, keys, quotas, and what runs.

request ─▶ app ─▶ routes ─▶ Service ─▶ sessions of the daemon's table ─▶ pool
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Unpack

from atoll.concurrency.background import Background
from atoll.concurrency.shares import OWNER, FairThreads
from atoll.config import SandboxConfig
from atoll.errors import AtollError, ConfigError, FleetError, SandboxClosedError, SandboxLostError
from atoll.hosting.client_callbacks import ClientCallbacks
from atoll.hosting.concurrency import CancelledInQueueError, ConcurrencyLimit, Waiter
from atoll.hosting.limits import DaemonLimits
from atoll.hosting.session_table import SessionTable
from atoll.hosting.sessions import open_storage
from atoll.log import SandboxLogger
from atoll.service import clock
from atoll.service.access.admission import budgets
from atoll.service.access.cpu import LOOK_SECONDS, CpuMeter, CpuMeters
from atoll.service.access.keys import Keys
from atoll.service.access.quotas import Quotas
from atoll.service.api.overview import Samples
from atoll.service.cluster.forward import Forwarder
from atoll.service.cluster.replicas import Replicas
from atoll.service.core.agent_runs import Runs
from atoll.service.core.contexts import Contexts, close
from atoll.service.core.executions import Executions
from atoll.service.core.history import cut
from atoll.service.core.sessions import STOPPED, Sessions
from atoll.service.dialects.e2b.dialect import E2B
from atoll.service.dialects.jupyter.gateway import Gateway
from atoll.service.dialects.librechat.dialect import LibreChat
from atoll.service.http.bodies import response_json, result_json
from atoll.service.http.problems import Problem, encode, json_size, of_error
from atoll.service.http.streams import Streams
from atoll.service.storage.blobs import blobs
from atoll.service.storage.database import Ledger
from atoll.service.storage.idempotency import IdempotencyKeys
from atoll.service.storage.objects import Objects
from atoll.service.storage.restart import CarryOver
from atoll.service.storage.stored import StoredBytes
from atoll.service.telemetry.metrics import Metrics
from atoll.service.telemetry.tracing import Traces
from atoll.text.amounts import counted
from atoll.types import SandboxResult

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from starlette.requests import Request

    from atoll.hosting.concurrency import Slot
    from atoll.sandbox.base import BaseSandbox
    from atoll.sandbox.command import Command, CommandOptions
    from atoll.service.access.admission import Holding
    from atoll.service.access.keys import Principal
    from atoll.service.cluster.fleet import FleetSandboxes
    from atoll.service.core.executions import Execution
    from atoll.service.core.tenant_session import HostedSession
    from atoll.service.http.routes import Route
    from atoll.service.settings import ServiceSettings

Opener = Callable[..., Awaitable["BaseSandbox"]]
"""Opens a sandbox for a configuration, and for the code that it will run if that is known."""
Runner = Callable[..., Awaitable[SandboxResult]]
"""Runs code in a fresh sandbox that nobody else sees: Pool.run."""
Finish = Callable[["BaseSandbox", dict[str, Any]], Awaitable[None]]
Work = Coroutine[Any, Any, dict[str, Any]]
SignIn = Callable[["Request"], "Principal | None"]
SWEEP_SECONDS = 5.0
LARGE_RESULT = 256 << 10
MOST_AS_JSON = 4
"""A result may have so many times the bytes of `max_output_bytes`."""
NEVER = 10**9
MOST_WAITING_THREADS = 64
"""File operations, searches and the like of one key that wait; further requests are refused."""
_LOG = logging.getLogger("atoll.service")
_QUIET = SandboxLogger(None)


class Service:
    """Everything that requests share."""

    def __init__(
        self,
        settings: ServiceSettings,
        opener: Opener,
        pool_stats: Callable[[], dict[str, dict[str, Any]]] = dict,
        runner: Runner | None = None,
        fleet: FleetSandboxes | None = None,
    ) -> None:
        self.settings, self._opener, self.pool_stats = settings, opener, pool_stats
        self._runner, self.fleet = runner, fleet
        self.memory, self.disk = budgets(settings)
        self.ledger = Ledger(settings.folder)
        self.keys, self.quotas = Keys(self.ledger), Quotas(self.ledger)
        self.streams = Streams(self.keys)
        self.answers, self.stored = IdempotencyKeys(self.ledger), StoredBytes(self.ledger)
        self.objects = Objects(blobs(settings), self.ledger, self.stored)
        self.executions = Executions(settings, self.memory)
        self.runs = Runs(settings.folder, self.ledger, self.stored)
        self.samples = Samples()
        self.limit = ConcurrencyLimit(settings.max_running, settings.max_queue)
        limits = _table_limits(settings, on_fleet=fleet is not None)
        fresh = self.ledger.one("SELECT 1 FROM saved_sessions") is None
        aside = settings.folder / "paused.sqlite3"
        storage, self._store = open_storage(aside, limits, clock.now, fresh=fresh)
        self.table = SessionTable(opener, storage, limits)
        self.sessions = Sessions(self.table, self.ledger, self.quotas, settings, self.memory)
        self.sessions.fleet, self.sessions.streams = fleet, self.streams
        self.librechat, self.e2b, self.gateway = LibreChat(self), E2B(self), Gateway(self)
        self.replicas = self.sessions.replicas = Replicas(settings) if settings.redis else None
        self._background, self.threads = Background(_LOG), FairThreads()
        self.cpu = CpuMeters(self.quotas, self._background, self.replicas)
        self.sessions.cpu = self.cpu
        self.traces = Traces(settings.traces)
        self.forwarder = Forwarder(self.traces) if settings.redis or fleet else None
        self.metrics = metrics = Metrics(self)
        self.sessions.on_end = lambda reason: metrics.closed.labels(reason).inc()
        self.draining = self.stopping = self.urgent = False
        self.sign_in: SignIn = lambda _request: None
        """Returns who a request of a web page comes from; None if it is not signed in."""
        self.login_secret: Callable[[str], str] = lambda _key: ""
        """Returns a secret that signs in once as the key with an id; empty without a console."""
        self.pages: list[Route] = []
        """Routes besides those of the API."""
        self.started = clock.now()
        self.isolation: str | None = None
        self.why_not = ""
        self.contexts = Contexts(self.objects, self.memory)
        self._carry_over = CarryOver(self, self._store)
        self._sweeping: list[asyncio.Task[Any]] = []

    async def start(self) -> None:
        """Open one sandbox to learn what isolation there is; begin to look after sessions."""
        asyncio.get_running_loop().set_default_executor(self.threads)
        self.runs.start()
        if lost := self.ledger.start():
            _LOG.warning("%s of an earlier process ended with it", counted(lost, "sessions"))
        if self.fleet is not None:
            await self.fleet.keys.compare(self.ledger)
        try:
            code = () if self.fleet is None else ("pass",)  # it needs no state there
            box = await self._opener(SandboxConfig(backend="native"), *code)
            self.isolation = str(box.isolation)
            await box.destroy()
        except AtollError as exc:
            self.why_not = str(exc)
            _LOG.warning("no sandbox can be opened: %s", exc)
        if self.fleet is None and (again := await self._carry_over.restore()):
            _LOG.info("going on with %s, saved when it stopped", counted(again, "sessions"))
        await self.announce()
        pause = min(SWEEP_SECONDS, self.settings.idle_seconds / 2)
        self._sweeping = [
            self._background.watch("the service", lambda: pause, *self._sweeps()),
            self._background.watch("CPU time", lambda: LOOK_SECONDS, self.cpu.sweep_limited),
        ]

    async def drain(self) -> None:
        """Refuse new work, and wait for what runs; cancel it when `drain_seconds` are over."""
        self.draining = self.stopping = True
        running = [one.task for one in self.executions.running if one.task is not None]
        if running:
            _, late = await asyncio.wait(running, timeout=self.settings.drain_seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=5)

    async def stop(self) -> None:
        """Save sessions, unless it is urgent; end those that cannot be saved; close the files."""
        self.draining = self.stopping = True
        self.runs.stop()
        for task in self._sweeping:
            task.cancel()
        for execution in self.executions.running:
            if execution.task is not None:
                execution.task.cancel()
        if self.fleet is None and not self.urgent:
            await self._carry_over.save()
        await self.sessions.end_all(STOPPED)
        self.e2b.sweep()
        await self.gateway.sweep()
        await self._background.wait(5)
        with contextlib.suppress(Exception):
            self.quotas.save()
        for one in (self.replicas, self.forwarder):
            if one is not None:
                await one.close()
        await asyncio.to_thread(self.traces.close)
        self._store.close_all()
        self.ledger.close()

    def require_accepting(self) -> None:
        """Refuse new work while the service is about to stop."""
        if self.draining:
            text = "the service is about to stop and takes no new work: try again later"
            raise Problem(503, "draining", text, retry_after=5)

    def act_for(self, principal: Principal) -> None:
        """Let this task, and what it starts, use the share of a key; 429 if too much waits."""
        if self.threads.waiting_of(principal.key) >= MOST_WAITING_THREADS:
            text = f"{MOST_WAITING_THREADS} operations of the key wait for a thread"
            raise Problem(429, "rate_limited", f"{text}: send fewer at a time", retry_after=1)
        OWNER.set(principal.key)

    def prepare(
        self, config: SandboxConfig, asks: dict[str, Any]
    ) -> tuple[SandboxConfig, ClientCallbacks]:
        """Return the configuration with functions that ask the caller for its tools."""
        callbacks = ClientCallbacks()
        functions = callbacks.functions(asks)
        return dataclasses.replace(config, logger=_QUIET, **functions), callbacks

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something that no request waits for."""
        self._background.spawn(work)

    async def run_in_session(
        self,
        execution: Execution,
        hosted: HostedSession,
        text: Command,
        *,
        verb: str,
        timeout_ms: float | None,
        **options: Unpack[CommandOptions],
    ) -> dict[str, Any]:
        """Run a cell (`execute`) or a command (`shell`) in a session; return its result."""
        session, begun = hosted.session, time.monotonic()
        limit = timeout_ms or session.config.timeout_ms
        hosted.touch()
        try:
            async with session.in_turn() as box, self._slot(execution, session.waiter) as slot:
                left = clock.time_left(limit, begun)
                execution.reserve_output(session.config)
                execution.interrupt = session.cancel
                execution.begin()
                hosted.callbacks.call_client(execution, hosted.id, slot)
                if execution.principal.key != hosted.key:
                    await self.sessions.charge(hosted)  # what it used before is not of this key
                meter = hosted.meter
                before = 0.0 if meter is None else meter.total
                logged = self.fleet is not None and verb == "execute" and execution.key
                more: Any = {**options, "key": execution.key} if logged else options
                result = await getattr(box, verb)(text, timeout_ms=left, **more)
                hosted.callbacks.flush()
                used = (getattr(result, "cpu_ms", None) or 0) / 1000
                await self.sessions.charge(hosted, execution.principal, before + used)
                if meter is not None and meter.stopped is not None:
                    raise meter.stopped
        except CancelledInQueueError:
            text = "it was cancelled before its turn: nothing ran"
            raise Problem(409, "cancelled", text) from None
        except (SandboxLostError, SandboxClosedError):
            if self.fleet is not None:
                await self.fleet.part_from_lost(self, hosted)
            if hosted.meter is not None and hosted.meter.stopped is not None:
                raise hosted.meter.stopped from None
            raise
        finally:
            hosted.touch()
        hosted.executions += 1
        if not isinstance(result, SandboxResult):
            self.quotas.executed(execution.principal)
            return response_json(execution.id, hosted.id, result)
        hosted.memory_bytes = max(hosted.memory_bytes, result.memory_used_bytes or 0)
        return self._counted(execution, result)

    async def run_once(
        self,
        execution: Execution,
        config: SandboxConfig,
        code: str,
        *,
        callbacks: ClientCallbacks,
        files: AsyncIterator[tuple[str, bytes]] | None,
        finish: Finish | None,
        setup: str = "",
    ) -> dict[str, Any]:
        """Run code in a sandbox of its own, after `setup`; `finish` may read its files then."""
        try:
            return await self._run_once(
                execution, config, code, callbacks=callbacks, files=files, finish=finish,
                setup=setup,
            )  # fmt: skip
        finally:
            close(config)

    async def _run_once(
        self,
        execution: Execution,
        config: SandboxConfig,
        code: str,
        *,
        callbacks: ClientCallbacks,
        files: AsyncIterator[tuple[str, bytes]] | None,
        finish: Finish | None,
        setup: str,
    ) -> dict[str, Any]:
        begun = time.monotonic()
        async with self._slot(execution, Waiter()) as slot:
            left = clock.time_left(config.timeout_ms, begun)
            execution.reserve_output(config)
            callbacks.call_client(execution, execution.id, slot)
            limited = execution.principal.quota.cpu_seconds_per_day is not None
            if self._runner is not None and files is None and finish is None and not limited:
                execution.begin()
                result = await self._runner(code, config, timeout_ms=left)
                callbacks.flush()
                self.cpu.count(execution.principal, (result.cpu_ms or 0) / 1000)
                return self._counted(execution, result)
            async with self._own_box(execution, config, code) as (box, meter):
                if files is not None:
                    execution.enter("files")
                    async for path, data in files:
                        (done,) = await box.files.upload([(path, data)])
                        if done.error is not None:
                            raise ConfigError(f"{done.path!r} cannot be written: {done.error}")
                if setup:
                    await box.execute(setup)
                execution.interrupt = box.cancel
                execution.begin()
                result = await box.execute(code, timeout_ms=left)
                callbacks.flush()
                await self.cpu.charge(meter, total=(result.cpu_ms or 0) / 1000)
                if meter.stopped is not None:
                    raise meter.stopped
                answer = self._counted(execution, result)
                if finish is not None:
                    execution.enter("files")
                    await finish(box, answer)
        return answer

    @contextlib.asynccontextmanager
    async def _own_box(
        self, execution: Execution, config: SandboxConfig, code: str
    ) -> AsyncIterator[tuple[BaseSandbox, CpuMeter]]:
        """Yield a sandbox for one execution, whose CPU time is counted; end it later."""
        execution.enter("open")
        box = await self._opener(config, code)

        async def stop(_problem: Problem) -> None:
            await box.destroy()

        meter = CpuMeter(execution.principal, lambda: box, stop)
        self.cpu.add(meter)
        try:
            yield box, meter
        except AtollError:
            if meter.stopped is not None:
                raise meter.stopped from None
            raise
        finally:
            self.cpu.remove(meter)
            self.spawn(box.destroy())

    def _counted(self, execution: Execution, result: SandboxResult) -> dict[str, Any]:
        execution.displays = result.displays
        self.quotas.executed(execution.principal)
        self.metrics.executed(result, execution.queue_ms)
        return result_json(execution.id, execution.session, result, execution.queue_ms)

    def _slot(self, execution: Execution, waiter: Waiter) -> AbstractAsyncContextManager[Slot]:
        """Wait for a place among the running; readers are told its place among those of its key."""
        if place := self.limit.place:
            execution.emit("queued", position=place)
        return self.limit.slot(waiter)

    def begin(self, execution: Execution, work: Work, inputs: Holding | None = None) -> None:
        """Start an execution: its quota is counted, and its end is told to its readers.

        `inputs` is what the request holds that asks for it: code, files, a context.
        """
        execution.inputs = None if inputs is None else inputs.share()
        execution.on_call = lambda outcome: self.metrics.tool_calls.labels(outcome).inc()
        task = asyncio.ensure_future(self._carry_out(execution, work))
        self.executions.start(execution, task)

    async def _carry_out(self, execution: Execution, work: Work) -> None:
        try:
            with self.quotas.execution(execution.principal):
                async with self._counted_everywhere(execution):
                    answer = await work
        except asyncio.CancelledError:
            gone = Problem(503, "cancelled", "the service stopped it, or its caller went away")
            execution.finish(gone.status, gone.as_json())
            raise
        except Exception as exc:  # noqa: BLE001 - whatever it is, readers are told
            problem = of_error(exc)
            if problem.status == 500:
                _LOG.error("an execution failed: %s", type(exc).__name__, exc_info=exc)
            execution.finish(problem.status, problem.as_json())
        else:
            await self._finish(execution, answer)
        finally:
            work.close()  # it may never have begun
            self.traces.executed(execution)

    async def _finish(self, execution: Execution, answer: dict[str, Any]) -> None:
        """End an execution with its result; a large one is encoded in a thread.

        Output that is many times larger as JSON is cut: a NUL takes six bytes there.
        """
        texts = [one for one in answer.values() if isinstance(one, str)]
        if sum(map(len, texts)) > LARGE_RESULT:
            most = MOST_AS_JSON * self.settings.max_output_bytes
            if await asyncio.to_thread(lambda: sum(map(json_size, texts))) > most:
                answer = cut(answer)
            body = await asyncio.to_thread(encode, answer)
        else:
            body = encode(answer)
        if not execution.fits(body):
            body, execution.displays = encode(cut(answer)), ()
        execution.finish(200, body)

    @contextlib.asynccontextmanager
    async def _counted_everywhere(self, execution: Execution) -> AsyncIterator[None]:
        """Count an execution in all services that share a Redis, and say where it is."""
        replicas, who = self.replicas, execution.principal
        if replicas is None:
            yield
            return
        await replicas.check_cpu(who)
        await replicas.count("executions", who, who.quota.executions)
        try:
            await replicas.announce([execution.id])
            yield
        finally:
            await replicas.uncount("executions", who.key)

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
            running = [one.id for one in self.executions.running]
            known = [*self.sessions.idents, *self.gateway.idents, *running]
            await self.replicas.announce(known)

    async def share_keys(self) -> None:
        """Let the other services in front of a fleet know of keys made or revoked here."""
        if self.fleet is not None:
            await self.fleet.keys.compare_now_and_then(self.ledger)

    async def refresh(self) -> None:
        """Bring what is known of the fleet up to date."""
        if self.fleet is not None:
            await self.fleet.refresh()

    def _sweeps(self) -> tuple[Callable[[], Awaitable[None] | None], ...]:
        """Return what is looked after again and again; a step that fails keeps no other back."""
        steps: list[Callable[[], Awaitable[None] | None]] = [
            self.sessions.sweep,
            self.cpu.sweep,
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
            functools.partial(self.ledger.sweep, self.settings.idempotency_seconds),
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
