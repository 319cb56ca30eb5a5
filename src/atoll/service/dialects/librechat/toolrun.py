"""An execution whose tools the client has: it runs, waits for results, and runs on.

Its time limit stands still while it waits; the client has ten minutes for its tools.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from atoll.errors import SandboxError
from atoll.guest.shared import values
from atoll.rpc.passed_fds import Reply
from atoll.service.core.executions import Execution
from atoll.service.dialects.librechat.executing import WorkspaceRun
from atoll.service.http.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.service.access.admission import Holding
    from atoll.service.access.keys import Principal
    from atoll.service.core.service import Service
    from atoll.service.dialects.librechat.wire import ToolResult

IDLE_SECONDS = 600.0
MAX_CALLS = 200
MAX_RESULT_BYTES = 5 << 20
MAX_RESULTS_BYTES = 40 << 20


class ToolCall(Struct):
    """A call that the client is to carry out."""

    id: str
    name: str
    input: Any


class ToolValue(Struct, omit_defaults=True):
    """What became of a call: a value, or an error for the guest to raise."""

    value: Any = UNSET
    error: str | UnsetType = UNSET


@dataclass(slots=True)
class Batch:
    """Calls that the guest made together; their results go back together."""

    calls: list[ToolCall]
    results: dict[str, ToolValue] = field(default_factory=dict)
    answered: asyncio.Future[list[ToolValue]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    shown: bool = False
    """Whether the client knows of them."""

    def take(self, results: dict[str, ToolValue]) -> None:
        """Take the results of its calls that are among these."""
        idents = [call.id for call in self.calls]
        self.results |= {ident: results[ident] for ident in idents if ident in results}
        if len(self.results) == len(idents) and not self.answered.done():
            self.answered.set_result([self.results[ident] for ident in idents])


class ToolRequest(WorkspaceRun, kw_only=True):
    """Code to run with the files of a workspace and the tools of the client."""

    seconds: float
    """The time limit of the code; it stands still while the code waits for the client."""


class ToolRun(Execution):
    """An execution whose tools the client has. Its time limit stands still while it waits."""

    def __init__(
        self, service: Service, principal: Principal, request: ToolRequest, held: Holding
    ) -> None:
        super().__init__(service, principal, request, held)
        self.batches: list[Batch] = []
        self.workspace = request.workspace
        self.timed_out = self.abandoned = False
        self._count = self._bytes = 0
        self._stopped = asyncio.Event()
        self._clock = _Clock(request.seconds, self._interrupt)
        self._ending: asyncio.Future[None] | None = None

    async def call(self, method: str, params: dict[str, Any]) -> Reply:  # noqa: ARG002
        """Take calls of the guest, and wait until the client has carried them out."""
        asked = values.decode(params.get("args", []))
        batch = Batch([self._numbered(call) for call in (asked[0] if asked else [])])
        if not batch.calls:
            return Reply([])
        self.batches.append(batch)
        self._clock.pause()
        self._stopped.set()
        try:
            return Reply(values.encode(msgspec.to_builtins(await batch.answered)))
        finally:
            self.batches.remove(batch)
            if not self.batches and not self.done:
                self._clock.run()

    def answer_calls(self, results: list[ToolResult]) -> None:
        """Take the client's results; 400 if one was not asked for, 413 if one is too large."""
        waiting = {call.id for batch in self.batches if batch.shown for call in batch.calls}
        given = {result.call_id: result for result in results}
        if len(given) < len(results) or not waiting >= given.keys():
            raise Problem(400, "invalid", "a result is given twice, or was never asked for")
        sizes = [len(msgspec.json.encode(result.result)) for result in results]
        self._bytes += sum(sizes)
        if max(sizes) > MAX_RESULT_BYTES or self._bytes > MAX_RESULTS_BYTES:
            raise Problem(413, "too_large", f"a result has at most {MAX_RESULT_BYTES:,} bytes")
        answers = {ident: _value(result) for ident, result in given.items()}
        self._stopped.clear()
        for batch in list(self.batches):
            if batch.shown:
                batch.take(answers)

    async def until_stopped(self) -> None:
        """Wait until it has ended, or waits for calls that the client does not know of."""
        while not self.done and all(batch.shown for batch in self.batches):
            self._stopped.clear()
            waiting = asyncio.ensure_future(self._stopped.wait())
            assert self.task is not None
            await asyncio.wait({waiting, self.task}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()

    def pending(self) -> list[ToolCall]:
        """Return the calls that wait for the client, all of them known to it from now on."""
        for batch in self.batches:
            batch.shown = True
        return [call for b in self.batches for call in b.calls if call.id not in b.results]

    def _numbered(self, asked: Any) -> ToolCall:
        self._count += 1
        if self._count > MAX_CALLS:
            raise SandboxError(f"a program may call tools {MAX_CALLS} times")
        given = asked if isinstance(asked, dict) else {}
        return ToolCall(f"call_{self._count:03d}", str(given.get("name")), given.get("input"))

    def _interrupt(self, *, late: bool) -> None:
        self.timed_out, self.abandoned = late, not late
        self._ending = asyncio.ensure_future(self.cancel())

    def finish(self, status: int, body: bytes) -> None:
        """End it, and its clocks."""
        super().finish(status, body)
        self._clock.stop()
        self._stopped.set()


class _Clock:
    """Counts the time of the code while it runs, and that of the client while the code waits."""

    def __init__(self, seconds: float, on_end: Callable[..., None]) -> None:
        self._left, self._on_end = seconds, on_end
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.run()

    def run(self) -> None:
        """Let the code's time pass."""
        self._since = time.monotonic()
        self._set(self._left, late=True)

    def pause(self) -> None:
        """Stop the code's time; begin that of the client, if it has not begun."""
        if self._since is None:
            return
        self._left, self._since = self._left - (time.monotonic() - self._since), None
        self._set(IDLE_SECONDS, late=False)

    def stop(self) -> None:
        """Stop both."""
        if self._timer is not None:
            self._timer.cancel()

    def _set(self, seconds: float, *, late: bool) -> None:
        self.stop()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, seconds), lambda: self._on_end(late=late))


def _value(given: ToolResult) -> ToolValue:
    if given.is_error:
        return ToolValue(error=given.error_message or "the tool failed")
    return ToolValue(value=given.result)
