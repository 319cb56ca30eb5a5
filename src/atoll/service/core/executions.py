"""One execution as its readers see it: events with numbers, kept in a ring, and a result.

The guest's side calls it as the daemon's sessions call a client: `notify` with output, `call` for
a tool. A reader that is slow, or comes back, gets what the ring still has.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from atoll.errors import SandboxError
from atoll.rpc.connection import Reply
from atoll.sandbox.bridge import CallFailedError
from atoll.service import clock
from atoll.service.http.problems import Problem, encode, not_found
from atoll.service.ids import new_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from atoll.config import SandboxConfig
    from atoll.service.access.admission import Budget, Holding
    from atoll.service.access.keys import Principal
    from atoll.service.http.bodies import ToolResult
    from atoll.service.settings import ServiceSettings
    from atoll.types import Display

Event = tuple[int, str, bytes]
"""Number (0: it is not counted), kind, and the whole event as JSON."""
KEEPALIVE = b'{"type":"keepalive"}'
MAX_KEPT = 20_000
OVERHEAD = 1100
"""Bytes that a finished execution takes besides its events, its answer and its displays."""
_NONE: frozenset[str] = frozenset()
_MAY_BE_DROPPED = ("stdout", "stderr")
_OF_GUEST = (*_MAY_BE_DROPPED, "tool_call")
"""Events whose size the guest decides; the others are part of the overhead."""
TENANTS_SHARE = 4
"""A tenant's finished executions may take this part of the room for all: one in four."""


class Execution:
    """A cell or command that runs, or has run."""

    def __init__(
        self, principal: Principal, session: str | None, event_bytes: int, held: Holding
    ) -> None:
        self.id, self.session, self.tenant = new_id("exe"), session, principal.tenant
        self.principal, self.held = principal, held
        held.grow(OVERHEAD)
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
        self._size, self._room, self._seq, self._dropped = 0, event_bytes, 0, 0
        self._last: tuple[str, str] | None = None
        """Kind of the last event, and the field that has the body."""
        self._news: asyncio.Event | None = None
        """What readers wait for; None while none waits."""
        self._calls: dict[str, asyncio.Future[ToolResult]] = {}
        self._answered: set[str] | frozenset[str] = _NONE
        self.on_call: Callable[[str], None] = _tell_nobody
        """Is called with the outcome of each call of a tool."""
        self.emit("accepted", execution=self.id, session=session)

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self.status != 0

    @property
    def size(self) -> int:
        """Bytes that it takes in memory, about."""
        return self.held.size

    def emit(self, kind: str, /, **fields: Any) -> int:
        """Tell every reader of an event; return its number. After the last one nothing is told."""
        if self._last is not None:
            return self._seq
        line = encode({"seq": self._seq + 1, "type": kind, **fields})
        has_room = kind not in _OF_GUEST or self._make_room(kind, len(line))
        self._seq += 1
        if has_room:
            self._events.append((self._seq, kind, line))
        else:
            self._dropped += 1
        self._wake()
        return self._seq

    def _make_room(self, kind: str, size: int) -> bool:
        """Hold the bytes of an event; return False if output has to be dropped instead.

        Problem if there is no room for an event that must not be dropped.
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

    def reserve_output(self, config: SandboxConfig) -> None:
        """Hold what the output of code that begins may take; its result takes the place of it."""
        self.held.grow(config.policy.stdout_max_bytes + config.policy.stderr_max_bytes)

    def begin(self) -> None:
        """Tell every reader that the code starts to run."""
        self.enter("execute")
        self.queue_ms = (self.phases[-1][1] - self.created) * 1000
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
        asked = {name: one for name, one in params.items() if name != "session"}
        try:
            seq = self.emit("tool_call", id=ident, **asked)
        except Problem as exc:
            del self._calls[ident]
            raise CallFailedError(exc.detail) from None
        try:
            result = await answer
        except asyncio.CancelledError:
            self.on_call("abandoned")
            raise
        finally:
            self._calls.pop(ident, None)
            self._remove(seq)
        self.on_call("error" if result.error is not None else "ok")
        if result.error is None:
            return Reply(result.value)
        failure = SandboxError(result.error)
        vars(failure)["tool_error"] = result.raised
        raise failure

    def answer(self, results: list[ToolResult]) -> None:
        """Take the answers to tool calls; 404 for a call never made, 409 for one answered."""
        for one in results:
            if one.id in self._answered:
                raise Problem(409, "answered", f"the call {one.id!r} has been answered")
            if one.id not in self._calls:
                raise not_found("tool call")
        self._answered |= {one.id for one in results}
        for one in results:
            if not self._calls[one.id].done():
                self._calls[one.id].set_result(one)

    def finish(self, status: int, body: Any) -> None:
        """End it with a result, or with a problem; `body` may be encoded already."""
        body = body if isinstance(body, bytes) else encode(body)
        if not self.fits(body):
            text = "there is no room in memory for the result: print and return less"
            problem = Problem(429, "memory", text, retry_after=1, retryable=False)
            status, body = problem.status, encode(problem.as_json())
        self.status, self.body, self.ended = status, body, clock.now()
        self._last = ("result", "result") if status < 400 else ("fault", "problem")
        self._seq += 1
        self._wake()

    def fits(self, body: bytes) -> bool:
        """Hold a result in place of the output; return False if there is no room for it."""
        shown = sum(len(one.data) for one in self.displays)
        return self.held.fits(OVERHEAD + self._size + len(body) + shown)

    def settle(self) -> None:
        """Let go of all but what can still be asked for.

        It would keep the sandbox, with its context, in memory for as long as its own result.
        """
        self.has_run, self.interrupt, self.task = self.interrupt is not None, None, None
        self.on_call, self.phases = _tell_nobody, []
        self._calls.clear()
        if self.inputs is not None:
            self.inputs.release()
            self.inputs = None
        self._events = list(self._events)  # a deque takes 600 bytes for three events

    async def events(self, after: int, pause: float) -> AsyncIterator[list[Event]]:
        """Yield events after a number, as many at a time as there are, until the last one.

        An event with number 0 is no event: it keeps the connection alive.
        """
        while True:
            news = self._news = self._news or asyncio.Event()
            ready = self._after(after)
            if ready:
                missing = ready[0][0] - after - 1
                if missing and self._dropped:
                    lost = encode({"type": "dropped", "events": missing})
                    ready.insert(0, (0, "dropped", lost))
                after = ready[-1][0]
                yield ready
            elif self.done:
                return
            else:
                try:
                    await asyncio.wait_for(news.wait(), pause)
                except TimeoutError:
                    yield [(0, "keepalive", KEEPALIVE)]

    def _after(self, after: int) -> list[Event]:
        found = []
        if self._last is not None and after < self._seq:
            kind, field = self._last
            line = encode({"seq": self._seq, "type": kind, field: msgspec.Raw(self.body)})
            found.append((self._seq, kind, line))
        for event in reversed(self._events):
            if event[0] <= after:
                break
            found.append(event)
        return found[::-1]

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
        if self._news is not None:
            self._news.set()
            self._news = None

    def _drop(self, room: int) -> None:
        """Forget the oldest output while events take more than `room` bytes."""
        kept: deque[Event] = deque()
        assert isinstance(self._events, deque)  # it has not ended
        while self._events and self._size > room:
            event = self._events.popleft()
            if event[1] in _MAY_BE_DROPPED:
                self._forget(event)
                self._dropped += 1
            else:
                kept.append(event)
        self._events.extendleft(reversed(kept))

    def _remove(self, seq: int) -> None:
        for event in self._events:
            if event[0] == seq:
                self._forget(event)
                self._events.remove(event)
                return

    def _forget(self, event: Event) -> None:
        self._size -= len(event[2])
        self.held.shrink(len(event[2]))


def _tell_nobody(_outcome: str) -> None:
    pass


class Executions:
    """All that run, and the finished ones that can still be asked for.

    Of those, each tenant has its own: one that runs much loses its own oldest results first.
    """

    def __init__(self, settings: ServiceSettings, budget: Budget) -> None:
        self._settings, self._budget = settings, budget
        self._running: dict[str, Execution] = {}
        self._finished: dict[str, Execution] = {}
        self._kept: dict[str, _Kept] = {}
        """The finished ones by tenant."""
        budget.reclaim.append(self._drop)

    @property
    def running(self) -> list[Execution]:
        """Those that have not ended."""
        return list(self._running.values())

    def __contains__(self, ident: str) -> bool:
        return ident in self._running or ident in self._finished

    def new(self, principal: Principal, session: str | None) -> Execution:
        """Return an execution that is about to start; Problem if there is no room for it."""
        held = self._budget.admit(principal, 0, "the output and result of an execution")
        return Execution(principal, session, self._settings.event_bytes, held)

    def start(self, execution: Execution, task: asyncio.Task[None]) -> None:
        """Keep a running execution."""
        execution.task = task
        self._running[execution.id] = execution
        task.add_done_callback(lambda _: self._ended(execution))

    def get(self, principal: Principal, ident: str) -> Execution:
        """Return an execution of the tenant; 404 if it has no such one."""
        found = self._running.get(ident) or self._finished.get(ident)
        if found is None or found.tenant != principal.tenant:
            raise not_found("execution")
        return found

    def sweep(self) -> None:
        """Forget what ended too long ago, or takes too much memory."""
        oldest = clock.now() - self._settings.kept_seconds
        most = self._settings.kept_bytes
        for tenant, kept in list(self._kept.items()):
            while kept.first is not None and kept.first.ended <= oldest:
                self._forget(tenant)
            while len(kept.executions) > 1 and kept.bytes > most // TENANTS_SHARE:
                self._forget(tenant)
        while sum(one.bytes for one in self._kept.values()) > most and self._drop(None):
            pass
        while len(self._finished) > MAX_KEPT:
            self._forget(max(self._kept, key=lambda one: len(self._kept[one].executions)))

    def _ended(self, execution: Execution) -> None:
        self._running.pop(execution.id, None)
        execution.settle()
        self._finished[execution.id] = execution
        kept = self._kept.setdefault(execution.tenant, _Kept())
        kept.executions[execution.id] = execution
        kept.bytes += execution.size
        self.sweep()

    def _drop(self, tenant: str | None) -> bool:
        """Forget the oldest result of a tenant, or of the one that keeps most."""
        if tenant is None and self._kept:
            tenant = max(self._kept, key=lambda one: self._kept[one].bytes)
        if tenant is None or tenant not in self._kept:
            return False
        self._forget(tenant)
        return True

    def _forget(self, tenant: str) -> None:
        kept = self._kept[tenant]
        ident, execution = kept.executions.popitem(last=False)
        kept.bytes -= execution.size
        del self._finished[ident]
        execution.held.release()
        if not kept.executions:
            del self._kept[tenant]


@dataclass(slots=True)
class _Kept:
    """Finished executions of one tenant, oldest first, and what they take."""

    executions: OrderedDict[str, Execution] = field(default_factory=OrderedDict)
    bytes: int = 0

    @property
    def first(self) -> Execution | None:
        """The oldest."""
        return next(iter(self.executions.values()), None)
