"""One execution: its work, its events with numbers, kept in a ring, and its result.

    Service.start(principal, request) ─▶ Execution.run ─▶ request.perform ─▶ Execution.finish

The guest's side calls it as the daemon's sessions call a client: `notify` with output, `call` for
a tool. A reader that is slow, or comes back, gets what the ring still has.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import msgspec

from atoll.errors import SandboxError
from atoll.rpc.passed_fds import Reply
from atoll.sandbox.bridge import CallFailedError
from atoll.service import clock
from atoll.service.core.work import RunResult
from atoll.service.http.problems import (
    Problem,
    ProblemInfo,
    decode,
    encode,
    json_size,
    not_found,
    of_error,
)
from atoll.service.http.streams import KEEPALIVE, event
from atoll.service.ids import new_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from atoll.config import SandboxConfig
    from atoll.service.access.admission import Budget, Holding
    from atoll.service.access.keys import Principal
    from atoll.service.core.service import Service
    from atoll.service.core.work import Ended, Request, Result
    from atoll.service.http.bodies import ToolResult
    from atoll.service.http.streams import Event
    from atoll.service.settings import ServiceSettings
    from atoll.types import Display

MAX_KEPT = 20_000
OVERHEAD = 1100
"""Bytes that a finished execution takes besides its events, its answer and its displays."""
_NONE: frozenset[str] = frozenset()
_MAY_BE_DROPPED = ("stdout", "stderr")
_OF_GUEST = (*_MAY_BE_DROPPED, "tool_call")
"""Events whose size the guest decides; the others are part of the overhead."""
TENANTS_SHARE = 4
"""A tenant's finished executions may take this part of the room for all: one in four."""
LARGE_RESULT = 256 << 10
MAX_AS_JSON = 4
"""A result may have so many times the bytes of `max_output_bytes`."""
_GONE = Problem(503, "cancelled", "the service stopped it, or its caller went away")
_STOPPED = _GONE.status, encode(_GONE.describe())
_LOG = logging.getLogger("atoll.service")


class Execution:
    """A request that runs, or has run: it owns the work, its events and its result."""

    def __init__(
        self, service: Service, principal: Principal, request: Request, held: Holding
    ) -> None:
        self.id, self.session = new_id("exe"), request.session
        self.principal, self.held = principal, held
        self.request: Request | None = request
        """What it does; None after its end."""
        self._service: Service | None = service
        self.inputs: Holding | None = None
        """What its request made the service hold: until it has ended."""
        self.created, self.ended = clock.now(), 0.0
        self.phases = [("queue", self.created)]
        """What it has come to, and when: queue, open, files, execute."""
        self.displays: tuple[Display, ...] = ()
        self.queue_ms = 0.0
        """How long it waited until its code ran."""
        self.status, self.body = 0, b""
        """The answer to a reader that wants no events; 0 while it runs."""
        self.task: asyncio.Task[None] | None = None
        self.key = ""
        """What the request's idempotency key is in the session's log, on a fleet."""
        self.interrupt: Callable[[], Awaitable[None]] | None = None
        """Interrupts the guest; None before the code starts and after it has ended."""
        self.has_run = False
        self._events: deque[Event] | list[Event] = deque()
        self._size, self._room, self._seq, self._dropped = 0, service.settings.event_bytes, 0, 0
        self._printed: list[tuple[str, str]] = []
        """Output that becomes events at the next turn of the loop."""
        self._result_type: type[Ended] = RunResult
        self._news: asyncio.Event | None = None
        """What readers wait for; None while none waits."""
        self._calls: dict[str, asyncio.Future[ToolResult]] = {}
        self._answered: set[str] | frozenset[str] = _NONE
        self.emit("accepted", execution=self.id, session=self.session)

    async def run(self) -> None:
        """Run the request within the quota of the key; end with its result or a problem."""
        service, request = self._service, self.request
        assert service is not None
        assert request is not None
        try:
            with service.quotas.execution(self.principal):
                async with (
                    contextlib.nullcontext()
                    if service.replicas is None
                    else service.replicas.execution(self.id, self.principal)
                ):
                    result = await request.perform(self, service)
            await self._finish_with(result, service.settings.max_output_bytes)
        except asyncio.CancelledError:
            self.finish(*_STOPPED)
            raise
        except Exception as exc:  # noqa: BLE001 - whatever it is, readers learn of it
            problem = of_error(exc)
            if problem.status == 500:
                _LOG.error("an execution failed: %s", type(exc).__name__, exc_info=exc)
            self.finish(problem.status, encode(problem.describe()))
        finally:
            if service.traces.enabled:
                service.traces.executed(self)

    async def _finish_with(self, result: Ended, max_output_bytes: int) -> None:
        """End it with its result; a large one is encoded in a thread.

        Output that is many times larger as JSON is cut: a NUL takes six bytes there.
        """
        texts, self._result_type = result.texts, type(result)
        if sum(map(len, texts)) > LARGE_RESULT:
            most = MAX_AS_JSON * max_output_bytes
            if await asyncio.to_thread(lambda: sum(map(json_size, texts))) > most:
                result.cut()
            body = await asyncio.to_thread(encode, result)
        else:
            body = encode(result)
        if self.fits(body):
            self.end_as(200, body)
            return
        result.cut()
        body, self.displays = encode(result), ()
        self.finish(200, body)

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self.status != 0

    def emit(self, kind: str, /, **fields: Any) -> int:
        """Add an event for all readers; return its number. Ignored after `finish`."""
        if self.status:
            return self._seq
        line = encode({"seq": self._seq + 1, "type": kind, **fields})
        has_room = kind not in _OF_GUEST or self._make_room(kind, len(line))
        self._seq += 1
        if has_room:
            self._events.append((self._seq, kind, line))
        else:
            self._dropped += 1
        if self._news is not None:
            self._wake()
        return self._seq

    def _make_room(self, kind: str, size: int) -> bool:
        """Hold the bytes of an event; return False if output has to be dropped instead.

        Problem if an event that must not be dropped does not fit.
        """
        self._drop(self._room - size)
        try:
            self.held.grow(size)
        except Problem:
            self._drop(0)
            if kind not in _MAY_BE_DROPPED:
                self.held.grow(size)
            elif not self.held.fits(self.held.size + size):
                return False
        self._size += size
        return True

    def enter(self, phase: str) -> None:
        """Note that a phase begins, and the one before it ends."""
        self.phases.append((phase, clock.now()))

    def hear(self, stream: str, text: str) -> None:
        """Take a piece of output; those of one turn of the loop become one event."""
        if not self._printed:
            asyncio.get_running_loop().call_soon(self.flush)
        if self._printed and self._printed[-1][0] == stream:
            text = self._printed.pop()[1] + text
        self._printed.append((stream, text))

    def flush(self) -> None:
        """Add events of the output that was heard."""
        printed, self._printed = self._printed, []
        for stream, text in printed:
            self.emit(stream, text=text)

    def wait_in_queue(self, place: int) -> None:
        """Say to readers which place it has among those of its key that wait."""
        self.emit("queued", position=place)

    def reserve_output(self, config: SandboxConfig) -> None:
        """Hold what the output of code that begins may take; its result takes the place of it."""
        self.held.grow(config.policy.stdout_max_bytes + config.policy.stderr_max_bytes)

    def begin(self) -> None:
        """Note that the code starts to run."""
        now = clock.now()
        self.phases.append(("execute", now))
        self.queue_ms = (now - self.created) * 1000
        self.emit("started")

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Take the guest's output."""
        if method == "output":
            for stream, text in params["pieces"]:
                self.emit(stream, text=text)

    async def call(self, method: str, params: dict[str, Any]) -> Reply:  # noqa: ARG002
        """Ask the caller for a tool, and wait for its answer."""
        if self.done:
            raise CallFailedError("the execution that could call it has ended")
        ident = f"call_{self._seq + 1}"
        answer = self._calls[ident] = asyncio.get_running_loop().create_future()
        asked = {name: value for name, value in params.items() if name != "session"}
        try:
            seq = self.emit("tool_call", id=ident, **asked)
        except Problem as exc:
            del self._calls[ident]
            raise CallFailedError(exc.detail) from None
        try:
            result = await answer
        except asyncio.CancelledError:
            self._count_call("abandoned")
            raise
        finally:
            self._calls.pop(ident, None)
            self._remove(seq)
        self._count_call("error" if result.error is not None else "ok")
        if result.error is None:
            return Reply(result.value)
        failure = SandboxError(result.error)
        vars(failure)["tool_error"] = result.raised
        raise failure

    def _count_call(self, outcome: str) -> None:
        if self._service is not None:
            self._service.metrics.tool_calls.labels(outcome).inc()

    def answer(self, results: list[ToolResult]) -> None:
        """Take the answers to tool calls; 404 for a call never made, 409 for one answered."""
        for result in results:
            if result.id in self._answered:
                raise Problem(409, "answered", f"the call {result.id!r} has been answered")
            if result.id not in self._calls:
                raise not_found("tool call")
        self._answered |= {result.id for result in results}
        for result in results:
            if not self._calls[result.id].done():
                self._calls[result.id].set_result(result)

    def finish(self, status: int, body: bytes) -> None:
        """End it with the JSON of a result, or of a problem."""
        if not self.fits(body):
            text = "there is no room in memory for the result: print and return less"
            problem = Problem(429, "memory", text, retry_after=1, retryable=False)
            status, body = problem.status, encode(problem.describe())
        self.end_as(status, body)

    def end_as(self, status: int, body: bytes) -> None:
        """End it with JSON that is held."""
        self.status, self.body, self.ended = status, body, clock.now()
        self._seq += 1
        if self._news is not None:
            self._wake()

    def outcome(self) -> Result | ProblemInfo:
        """Return what it ended with."""
        if self.status >= 400:
            return decode(self.body, ProblemInfo)
        return cast("Result", decode(self.body, self._result_type))

    def fits(self, body: bytes) -> bool:
        """Hold a result in place of the output; return False if it does not fit."""
        size = OVERHEAD + self._size + len(body)
        for display in self.displays:
            size += len(display.data)
        return self.held.fits(size)

    def settle(self) -> None:
        """Keep only the result and its events.

        The rest would keep the sandbox, with its context, in memory for as long as the result.
        """
        if not self.status:  # it was cancelled before `run` began
            self.finish(*_STOPPED)
        self.has_run, self.interrupt, self.task = self.interrupt is not None, None, None
        self.request = self._service = None
        self.phases = []
        self._calls.clear()
        if self.inputs is not None:
            self.inputs.release()
            self.inputs = None
        self._events = list(self._events)  # a deque takes 600 bytes for three events

    async def events(self, after: int, pause: float) -> AsyncIterator[list[Event]]:
        """Yield events after a number, as many at a time as there are, until the last one.

        Number 0 is a keepalive, or says how many events were dropped.
        """
        while True:
            news = self._news = self._news or asyncio.Event()
            ready = self._after(after)
            if ready:
                missing = ready[0][0] - after - 1
                if missing and self._dropped:
                    ready.insert(0, event("dropped", events=missing))
                after = ready[-1][0]
                yield ready
            elif self.done:
                return
            else:
                try:
                    await asyncio.wait_for(news.wait(), pause)
                except TimeoutError:
                    yield [KEEPALIVE]

    def _after(self, after: int) -> list[Event]:
        newest_first = []
        if self.done and after < self._seq:
            kind, field = ("result", "result") if self.status < 400 else ("fault", "problem")
            line = encode({"seq": self._seq, "type": kind, field: msgspec.Raw(self.body)})
            newest_first.append((self._seq, kind, line))
        for known in reversed(self._events):
            if known[0] <= after:
                break
            newest_first.append(known)
        return newest_first[::-1]

    async def cancel(self) -> None:
        """Interrupt the code, whose result then says so; what has not started never will."""
        if self.done:
            return
        if self.interrupt is not None:
            await self.interrupt()
        elif self.task is not None:
            self.task.cancel()

    async def wait(self) -> None:
        """Wait until it has ended."""
        if self.task is not None:  # it lets go of it in the end
            await asyncio.wait({self.task})

    def _wake(self) -> None:
        assert self._news is not None
        self._news.set()
        self._news = None

    def _drop(self, room: int) -> None:
        """Forget the oldest output while events take more than `room` bytes."""
        kept: deque[Event] = deque()
        assert isinstance(self._events, deque)  # it has not ended
        while self._events and self._size > room:
            oldest = self._events.popleft()
            if oldest[1] in _MAY_BE_DROPPED:
                self._forget(oldest)
                self._dropped += 1
            else:
                kept.append(oldest)
        self._events.extendleft(reversed(kept))

    def _remove(self, seq: int) -> None:
        for known in self._events:
            if known[0] == seq:
                self._forget(known)
                self._events.remove(known)
                return

    def _forget(self, known: Event) -> None:
        self._size -= len(known[2])
        self.held.shrink(len(known[2]))


class Executions:
    """All that run, and the finished ones that can still be asked for.

    Of those, each tenant has its own: one that runs much loses its own oldest results first.
    """

    def __init__(self, settings: ServiceSettings, budget: Budget) -> None:
        self._settings = settings
        self._running: dict[str, Execution] = {}
        self._finished: dict[str, Execution] = {}
        self._kept: dict[str, _Kept] = {}
        """The finished ones by tenant."""
        self._bytes = 0
        """What all finished ones take."""
        budget.reclaim.append(self._drop)

    @property
    def running(self) -> list[Execution]:
        """Those that have not ended."""
        return list(self._running.values())

    def __contains__(self, ident: str) -> bool:
        return ident in self._running or ident in self._finished

    def add(self, execution: Execution) -> None:
        """Keep an execution that runs."""
        self._running[execution.id] = execution

    def get(self, principal: Principal, ident: str) -> Execution:
        """Return an execution of the tenant; 404 if it has none of that id."""
        execution = self._running.get(ident) or self._finished.get(ident)
        if execution is None or execution.principal.tenant != principal.tenant:
            raise not_found("execution")
        return execution

    def end(self, execution: Execution) -> None:
        """Keep an execution that has ended, for those who ask for it later."""
        self._running.pop(execution.id, None)
        execution.settle()
        size = execution.held.size
        self._finished[execution.id] = execution
        kept = self._kept.get(execution.principal.tenant)
        if kept is None:
            kept = self._kept[execution.principal.tenant] = _Kept()
        kept.executions[execution.id] = execution
        kept.bytes += size
        self._bytes += size
        most = self._settings.kept_bytes
        if (
            kept.bytes > most // TENANTS_SHARE
            or self._bytes > most
            or len(self._finished) > MAX_KEPT
        ):
            self.sweep()

    def sweep(self) -> None:
        """Forget what ended too long ago, or takes too much memory."""
        oldest = clock.now() - self._settings.kept_seconds
        most = self._settings.kept_bytes
        for tenant, kept in list(self._kept.items()):
            while kept.executions and next(iter(kept.executions.values())).ended <= oldest:
                self._forget(tenant)
            while len(kept.executions) > 1 and kept.bytes > most // TENANTS_SHARE:
                self._forget(tenant)
        while self._bytes > most and self._drop(None):
            pass
        while len(self._finished) > MAX_KEPT:
            self._forget(max(self._kept, key=lambda name: len(self._kept[name].executions)))

    def _drop(self, tenant: str | None) -> bool:
        """Forget the oldest result of a tenant, or of the one that keeps most."""
        if tenant is None and self._kept:
            tenant = max(self._kept, key=lambda name: self._kept[name].bytes)
        if tenant is None or tenant not in self._kept:
            return False
        self._forget(tenant)
        return True

    def _forget(self, tenant: str) -> None:
        kept = self._kept[tenant]
        ident, execution = kept.executions.popitem(last=False)
        kept.bytes -= execution.held.size
        self._bytes -= execution.held.size
        del self._finished[ident]
        execution.held.release()
        if not kept.executions:
            del self._kept[tenant]


@dataclass(slots=True)
class _Kept:
    """Finished executions of one tenant, oldest first, and what they take."""

    executions: OrderedDict[str, Execution] = field(default_factory=OrderedDict)
    bytes: int = 0
