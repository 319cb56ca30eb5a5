"""What an execution does, as a typed request, and what it ends with, as a typed result.

    RunRequest      code in a sandbox of its own    ─▶ RunResult
    CellRequest     code in a session               ─▶ RunResult
    ShellRequest    a command in a session          ─▶ ShellResult

`Service.start` makes an Execution of a request, whose `run` calls `perform`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import operator
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from msgspec import UNSET, Struct, UnsetType

from atoll.concurrency.shares import CancelledInQueueError
from atoll.errors import AtollError, ConfigError, SandboxClosedError, SandboxLostError
from atoll.guest.shared import values
from atoll.network import NetworkUse
from atoll.policy import Isolation
from atoll.service import clock
from atoll.service.access.cpu import CpuMeter
from atoll.service.core.contexts import close
from atoll.service.http.problems import Problem, encode
from atoll.types import ExecuteResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from atoll.config import SandboxConfig
    from atoll.hosting.client_callbacks import ClientCallbacks
    from atoll.sandbox.base import BaseSandbox
    from atoll.sandbox.command import Command, CommandOptions
    from atoll.service.core.executions import Execution
    from atoll.service.core.service import Service
    from atoll.service.core.tenant_session import HostedSession
    from atoll.types import SandboxResult

MAX_RETURNED_BYTES = 32 << 20
MAX_KEPT_TEXT = 64 << 10
"""Characters of each text of a result that is cut."""
_LEVELS: dict[Isolation | None, str] = {level: str(level) for level in (None, *Isolation)}


class Verb(StrEnum):
    """What runs in a session."""

    EXECUTE = "execute"
    SHELL = "shell"


class DisplayLink(Struct):
    """A display, and where its bytes are."""

    n: int
    media_type: str
    size: int
    url: str


class ArtifactInfo(Struct):
    """A file that the code wrote; with `return_files`, its bytes or why they were left out."""

    path: str
    size: int
    media_type: str
    change: Literal["created", "modified"]
    left_out: str | UnsetType = UNSET
    content_b64: str | UnsetType = UNSET


class RunResult(Struct, kw_only=True):
    """How code ended; displays and files by their addresses."""

    id: str
    session: str | None
    kind: str
    stdout: str
    stderr: str
    error: str | None
    error_type: str | None
    exit_code: int
    duration_ms: float
    cpu_ms: float | None
    value_repr: str | None
    truncated: bool
    state_lost: bool
    fuel_consumed: int | None
    memory_used_bytes: int | None
    cold_start: str | None
    success: bool
    queue_ms: float
    error_args: list[Any]
    value: Any
    """As docs/protocol.md writes values."""
    displays: list[DisplayLink]
    artifacts: list[ArtifactInfo]
    files_created: list[str]
    files_modified: list[str]
    isolation: str
    image: str | None
    network: NetworkUse | None

    @classmethod
    def of(cls, execution: Execution, result: SandboxResult) -> RunResult:
        """Return a sandbox's result as readers of an execution see it."""
        address = f"/api/v1/executions/{execution.id}/displays"
        return cls(
            id=execution.id,
            session=execution.session,
            kind=result.kind.value,
            **dict(zip(_SAME, _same(result), strict=True)),
            queue_ms=round(execution.queue_ms, 3),
            error_args=list(map(values.encode, result.error_args)),
            value=None if result.value is None else values.encode(result.value),
            displays=[
                DisplayLink(n, display.media_type, len(display.data), f"{address}/{n}")
                for n, display in enumerate(result.displays)
            ],
            artifacts=[
                ArtifactInfo(
                    file.path,
                    file.size,
                    file.media_type,
                    "created" if file.path in result.files_created else "modified",
                )
                for file in result.artifacts
            ],
            files_created=list(result.files_created),
            files_modified=list(result.files_modified),
            isolation=_LEVELS[result.isolation],
        )

    @property
    def texts(self) -> tuple[str, ...]:
        """What the guest may make large, besides the value."""
        return self.stdout, self.stderr, self.error or "", self.value_repr or ""

    def cut(self) -> None:
        """Cut long texts, and leave a large value out."""
        _cut_texts(self, "stdout", "stderr", "error", "value_repr")
        if self.value is not None and len(encode(self.value)) > MAX_KEPT_TEXT:
            self.value = None


_SAME = (
    *("stdout", "stderr", "error", "error_type", "exit_code", "value_repr", "network"),
    "image",
    *("duration_ms", "cpu_ms", "memory_used_bytes", "fuel_consumed"),
    *("truncated", "state_lost", "cold_start", "success"),
)
"""Fields of a SandboxResult that readers see unchanged."""
_same = operator.attrgetter(*_SAME)


class ShellResult(Struct, kw_only=True):
    """How a shell command ended."""

    id: str
    session: str | None
    kind: Literal["shell"] = "shell"
    output: str
    stderr: str
    exit_code: int | None
    truncated: bool
    error: str | None
    network: NetworkUse | None

    @classmethod
    def of(cls, execution: Execution, response: ExecuteResponse) -> ShellResult:
        """Return a sandbox's answer to a command as readers of an execution see it."""
        return cls(
            id=execution.id,
            session=execution.session,
            output=response.output,
            stderr=response.stderr,
            exit_code=response.exit_code,
            truncated=response.truncated,
            error=response.error,
            network=response.network,
        )

    @property
    def texts(self) -> tuple[str, ...]:
        """What the guest may make large."""
        return self.output, self.stderr, self.error or ""

    def cut(self) -> None:
        """Cut long texts."""
        _cut_texts(self, "output", "stderr", "error")


Result = RunResult | ShellResult


class Ended(Protocol):
    """What a request ends with: a Result, or the answer of another API."""

    @property
    def texts(self) -> tuple[str, ...]:
        """What the guest may make large."""
        ...

    def cut(self) -> None:
        """Cut long texts."""
        ...


def _cut_texts(result: Result, *names: str) -> None:
    half = MAX_KEPT_TEXT // 2
    for name in names:
        text = getattr(result, name) or ""
        if len(text) > MAX_KEPT_TEXT:
            left_out = f"[{len(text) - 2 * half:,} characters left out]"
            setattr(result, name, f"{text[:half]}\n{left_out}\n{text[-half:]}")
            result.truncated = True


class RunRequest(Struct, kw_only=True):
    """Code to run once, in a sandbox of its own."""

    session: ClassVar[None] = None

    code: str
    config: SandboxConfig
    callbacks: ClientCallbacks | None = None
    """Asks the client for its tools; None if it has none."""
    stdin: str | bytes | None = None
    """What the code reads from standard input."""
    setup: str = ""
    """Code that runs before."""
    files: list[tuple[str, bytes]] = []
    return_files: bool = False
    needs_sandbox: bool = False
    """Whether the sandbox has to be known while the code runs, so that it can be interrupted."""

    async def perform(self, execution: Execution, service: Service) -> Ended:
        """Run the code, and return its result."""
        begun, config = time.monotonic(), self.config
        if self.callbacks is None:
            config = config.with_values(on_output=execution.hear)
        try:
            async with service.limit.slot(None, execution.wait_in_queue) as slot:
                left = clock.time_left(config.timeout_ms, begun)
                execution.reserve_output(config)
                if self.callbacks is not None:
                    self.callbacks.call_client(execution, execution.id, slot)
                limited = execution.principal.quota.cpu_seconds_per_day is not None
                if service.runner is None or self.needs_sandbox or limited:
                    return await self._run_in_sandbox(execution, service, config, left)
                execution.begin()
                more = {} if self.stdin is None else {"stdin": self.stdin}
                result = await service.runner(self.code, config, timeout_ms=left, **more)
                (self.callbacks or execution).flush()
                return service.ended(execution, result, (result.cpu_ms or 0) / 1000)
        finally:
            if config.context is not None:
                close(config)

    async def _run_in_sandbox(
        self, execution: Execution, service: Service, config: SandboxConfig, left: float
    ) -> RunResult:
        async with self._opened(execution, service, config) as (box, meter):
            await self.put_files(execution, service, box)
            if self.setup:
                await box.execute(self.setup)
            execution.interrupt = box.cancel
            execution.begin()
            more: Any = {} if self.stdin is None else {"stdin": self.stdin}
            result = await box.execute(self.code, timeout_ms=left, **more)
            (self.callbacks or execution).flush()
            await service.cpu.charge(meter, total=(result.cpu_ms or 0) / 1000)
            if meter.stopped is not None:
                raise meter.stopped
            answer = service.ended(execution, result)
            await self.take_files(execution, box, answer)
        return answer

    @contextlib.asynccontextmanager
    async def _opened(
        self, execution: Execution, service: Service, config: SandboxConfig
    ) -> AsyncIterator[tuple[BaseSandbox, CpuMeter]]:
        """Yield a sandbox whose CPU time is counted; end it in the background."""
        execution.enter("open")
        box = await service.opener(config, self.code)

        async def stop(_problem: Problem) -> None:
            await box.destroy()

        meter = CpuMeter(execution.principal, lambda: box, stop)
        service.cpu.add(meter)
        try:
            yield box, meter
        except AtollError:
            if meter.stopped is not None:
                raise meter.stopped from None
            raise
        finally:
            service.cpu.remove(meter)
            service.spawn(box.destroy())

    async def put_files(self, execution: Execution, service: Service, box: BaseSandbox) -> None:  # noqa: ARG002
        """Put files beside the code, before it runs."""
        if self.files:
            execution.enter("files")
        for path, data in self.files:
            await put_file(box, path, data)

    async def take_files(self, execution: Execution, box: BaseSandbox, answer: RunResult) -> None:
        """Put the files that the code wrote into the answer, while there is room for them."""
        if not self.return_files:
            return
        execution.enter("files")
        room, held = MAX_RETURNED_BYTES, execution.held
        for file in answer.artifacts:
            # It is held as bytes, as base64 in the answer, and in the encoded answer.
            if file.size > room or not held.fits(held.size + 4 * file.size):
                file.left_out = "too_large"
                continue
            (loaded,) = await box.files.download([file.path])
            if loaded.content is None:
                file.left_out = str(loaded.error)
            elif len(loaded.content) <= room:
                room -= len(loaded.content)
                encoded = await asyncio.to_thread(base64.b64encode, loaded.content)
                file.content_b64 = encoded.decode()
            else:
                file.left_out = "too_large"


async def put_file(box: BaseSandbox, path: str, data: bytes) -> None:
    """Write a file into a sandbox; ConfigError if it cannot be written."""
    (done,) = await box.files.upload([(path, data)])
    if done.error is not None:
        raise ConfigError(f"{done.path!r} cannot be written: {done.error}")


class SessionRequest(Struct, kw_only=True):
    """Something to run in a session, when it is its turn."""

    verb: ClassVar[Verb]

    hosted: HostedSession
    text: str
    """The code or command as the session's history shows it."""
    kept: bool = True
    """Whether the history shows it at all."""
    timeout_ms: float | None = None
    """Unset: the session's own limit."""

    @property
    def session(self) -> str:
        """The id of the session."""
        return self.hosted.id

    async def run_in(
        self, box: BaseSandbox, timeout_ms: float, key: str | None
    ) -> SandboxResult | ExecuteResponse:
        """Run it in a sandbox; `key` is its idempotency key in the log of a fleet's session."""
        raise NotImplementedError

    async def perform(self, execution: Execution, service: Service) -> Result:
        """Run it in its turn, and return its result."""
        hosted, begun = self.hosted, time.monotonic()
        session, principal = hosted.session, execution.principal
        hosted.touch()
        try:
            async with (
                session as box,
                service.limit.slot(session.waiter, execution.wait_in_queue) as slot,
            ):
                left = clock.time_left(self.timeout_ms or session.config.timeout_ms, begun)
                execution.reserve_output(session.config)
                execution.interrupt = session.cancel
                execution.begin()
                hosted.callbacks.call_client(execution, hosted.id, slot)
                if principal.key != hosted.key:
                    await service.sessions.charge(hosted)  # what it used before is not of this key
                meter = hosted.meter
                before = 0.0 if meter is None else meter.total
                key = None if service.fleet is None else execution.key or None
                result = await self.run_in(box, left, key)
                hosted.callbacks.flush()
                used = (getattr(result, "cpu_ms", None) or 0) / 1000
                await service.sessions.charge(hosted, principal, before + used)
                if meter is not None and meter.stopped is not None:
                    raise meter.stopped
        except CancelledInQueueError:
            text = "it was cancelled before its turn: nothing ran"
            raise Problem(409, "cancelled", text) from None
        except (SandboxLostError, SandboxClosedError):
            if service.fleet is not None:
                await service.fleet.part_from_lost(service, hosted)
            if hosted.meter is not None and hosted.meter.stopped is not None:
                raise hosted.meter.stopped from None
            raise
        finally:
            hosted.touch()
        hosted.facts.executions += 1
        if isinstance(result, ExecuteResponse):
            service.quotas.executed(principal)
            return ShellResult.of(execution, result)
        facts = hosted.facts
        facts.memory_bytes = max(facts.memory_bytes, result.memory_used_bytes or 0)
        return service.ended(execution, result)


class CellRequest(SessionRequest, kw_only=True):
    """Code to run in a session."""

    verb: ClassVar[Verb] = Verb.EXECUTE

    code: str

    async def run_in(self, box: BaseSandbox, timeout_ms: float, key: str | None) -> SandboxResult:
        """Run the code."""
        return await box.execute(self.code, timeout_ms=timeout_ms, key=key)


class ShellRequest(SessionRequest, kw_only=True):
    """A command to run in a session."""

    verb: ClassVar[Verb] = Verb.SHELL

    command: Command
    options: CommandOptions = {}

    async def run_in(
        self,
        box: BaseSandbox,
        timeout_ms: float,
        key: str | None,  # noqa: ARG002
    ) -> ExecuteResponse:
        """Run the command; the log of a fleet's session has no commands, and no keys of them."""
        return await box.shell(self.command, timeout_ms=timeout_ms, **self.options)


Request = RunRequest | SessionRequest
