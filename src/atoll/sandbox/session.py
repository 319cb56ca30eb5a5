"""One living guest, as the host sees it: runs under a deadline, keeps the output.

    execute ──request──▶ channel ──▶ guest
       │                              │ stdout, stderr: pipes that the host reads itself
       ├── deadline, cancel(), CPU ──▶ interrupt; state kept if the guest obeys in time
       └── not in time, or it died ──▶ kill; the result says that state is lost

Every backend whose guest speaks JSON-RPC over a channel uses this; it brings a GuestProcess.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import time
from typing import TYPE_CHECKING, Any

from atoll.errors import SandboxError, StateError, VariableError
from atoll.guest.shared import rpc, values
from atoll.rpc.peer import Wake
from atoll.sandbox import result_fields, variables
from atoll.sandbox.channel import ChannelEndedError, RemoteError
from atoll.sandbox.output import make_captures
from atoll.sandbox.verbs import SetVariable
from atoll.types import CodeFault, Outcome, SandboxResult

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from atoll.config import SandboxConfig
    from atoll.sandbox.channel import HostChannel
    from atoll.sandbox.result_fields import ResultFields
    from atoll.sandbox.verbs import VariableRequest
    from atoll.sandbox.wire.answers import GuestAnswer
    from atoll.types import ExecuteResponse, GuestProcess, Usage

    Reader = Callable[[GuestAnswer], ResultFields]

GRACE_SECONDS = 0.25
LONGEST_GRACE_SECONDS = 2.0
"""What a guest has at most to react to an interrupt, on a machine with more work than cores."""
_REACTED = 0.6
"""A guest that had this share of its grace as CPU time could have reacted."""
SHELL_GRACE_SECONDS = 1.0
"""A command that is stopped may have many processes, and each has to be gone."""
CPU_POLL_SECONDS = 0.05
SETTLE_SECONDS, SETTLE_POLL_SECONDS = 1.0, 0.002
DRAIN_LIMIT, READ_SIZE = 4 << 20, 1 << 16
MAX_FILE_IN_MESSAGE = 16 << 20


class GuestSession:
    """Runs one request at a time against one guest."""

    def __init__(
        self,
        config: SandboxConfig,
        process: GuestProcess,
        channel: HostChannel,
        output_fds: list[int],
    ) -> None:
        self._config, self._process, self._channel = config, process, channel
        self._loop = asyncio.get_running_loop()
        self._fds = output_fds
        self._readable = select.poll()
        self._deadline = Deadline(lambda: self._stop_with(Outcome.TIMEOUT))
        self._stop: Wake | None = None
        self._violation: str | None = None
        self._fault: str | None = None
        """Why the host had to end a guest that had done nothing wrong."""
        self._used: tuple[int | None, float | None] = None, None
        """Memory and CPU seconds that a guest had used when it was killed."""
        self.alive, self._interrupts = True, 0
        self.grace_seconds = GRACE_SECONDS
        """Seconds a guest has to react to an interrupt; slow backends set a longer time."""
        for index, fd in enumerate(output_fds):
            os.set_blocking(fd, False)
            self._loop.add_reader(fd, self._on_output, index)
            self._readable.register(fd, select.POLLIN)
        self._idle_captures = self._captures = make_captures(self._config)
        self._cell_captures = make_captures(self._config, "stdout", "stderr")
        """Used again for the next cell if they have taken nothing."""

    @property
    def unread(self) -> bool:
        """Whether the guest has ended before it had read its last request."""
        return self._channel.unread

    @property
    def dead(self) -> bool:
        """Whether the guest has ended between requests."""
        return not self.alive or self._process.ended.done() or self._channel.ended

    async def execute(
        self,
        code: str,
        timeout_ms: float,
        *,
        look_again: bool = False,
        cell: Mapping[str, Any] | None = None,
        **facts: Any,
    ) -> SandboxResult:
        """Run a cell; the result has `facts` and every fault of the guest.

        `look_again`: files were changed from outside since the last cell. `cell` has its options:
        whether it imports from the folders of packages, its input, whether it is a whole program.
        """
        params: dict[str, Any] = {"code": code, **(cell or {})}
        if look_again:
            params["look_again"] = True
        output, errors = self._cell_captures
        if not (output.blank and errors.blank):
            self._cell_captures = make_captures(self._config, "stdout", "stderr")
        self._captures = self._cell_captures
        usage = self._process.usage
        cpu, started = usage.cpu_seconds(), time.perf_counter()
        fields = await self._run("execute", params, result_fields.read_cell, timeout_ms)
        facts["duration_ms"] = (time.perf_counter() - started) * 1000
        if self.alive:  # else the supervisor has told what it used
            fields["memory_used_bytes"] = usage.peak_memory()
        used = fields.pop("cpu_seconds", None) or usage.cpu_seconds()
        if cpu is not None and used is not None:
            facts["cpu_ms"] = max(0.0, used - cpu) * 1000
        facts.update(fields)
        return SandboxResult(**facts)

    async def shell(self, params: Mapping[str, Any], timeout_ms: float) -> ExecuteResponse:
        """Run a shell command beside the guest's Python; variables live on if it is stopped."""
        apart = params.get("merge_stderr") is False
        self._captures = make_captures(self._config, "stdout", *(("stderr",) if apart else ()))
        fields = await self._run("shell", params, result_fields.read_shell, timeout_ms)
        return result_fields.response(fields, timeout_ms, apart=apart)

    async def ask_variable(self, request: VariableRequest, timeout_ms: float) -> GuestAnswer:
        """Ask about a variable and return the guest's answer; VariableError says why it is missing.

        The answer is the guest's word: `variables` checks what it holds.
        """
        params = request.params()
        name, setting = str(params.get("name", "*")), isinstance(request, SetVariable)
        refuse = variables.cannot_set if setting else variables.cannot_read
        try:
            answer, stopped = await self._request(request.verb, params, timeout_ms)
        except (RemoteError, rpc.MessageTooLargeError) as exc:
            raise refuse(name, str(exc)) from None
        if answer is not None and answer.get("interrupted") is True:
            raise VariableError(name, f"it took longer than {timeout_ms:g} ms, or was cancelled")
        if answer is None or stopped:
            await self._death(stopped, timeout_ms)
            raise VariableError(name, "the guest ended, or did not answer in time and was ended")
        return answer

    async def set_tools(self, described: list[dict[str, Any]], timeout_ms: float) -> None:
        """Offer these tools and no others; a guest that does not say so in time is ended."""
        try:
            answer, stopped = await self._request("tools", {"tools": described}, timeout_ms)
        except RemoteError as exc:
            raise SandboxError(f"the guest did not take the tools: {exc}") from None
        if answer is None or stopped or answer.get("set") is not True:
            await self._death(stopped, timeout_ms)

    async def find_fault(self, code: str, timeout_ms: float) -> CodeFault | None:
        """Return why the code does not compile; None if it does."""
        try:
            answer, _ = await self._request("validate", {"code": code}, timeout_ms)
        except RemoteError:
            return CodeFault()
        return CodeFault.of(answer or {})

    async def fork(self, timeout_ms: float) -> None:
        """Let the guest clone itself; SandboxError if it does not."""
        try:
            answer, stopped = await self._request("fork", {}, timeout_ms)
        except RemoteError as exc:
            raise SandboxError(f"the guest cannot clone itself: {exc}") from None
        if stopped or not answer or answer.get("forked") is not True:
            await self._death(stopped, timeout_ms)
            raise SandboxError("the guest ended instead of cloning itself")

    async def ask(
        self, method: str, params: Mapping[str, Any], timeout_ms: float
    ) -> dict[str, Any]:
        """Have the session's state saved or restored; StateError says why it was not."""
        try:
            answer, stopped = await self._request(method, params, timeout_ms)
        except RemoteError as exc:
            raise StateError(f"the guest did not {method}: {str(exc)[:1000]}") from None
        if answer is None:
            fields = await self._death(stopped, timeout_ms)
            raise StateError(f"the guest ended during {method}: {fields['error']}")
        if answer.get("interrupted"):
            why = self._stop_fields(stopped, timeout_ms)["error"] if stopped else "it was stopped"
            raise StateError(f"the guest did not {method}: {why}")
        if "error" in answer:
            why = result_fields.printable(str(answer["error"])[:1000])
            raise StateError(f"the guest could not {method}: {why}")
        return answer

    async def workspace(self, operation: str, params: Mapping[str, Any], timeout_ms: float) -> Any:
        """Have the guest do something with its files; ValueError says what it does not accept."""
        sent = {"params": values.encode(dict(params)), "most": MAX_FILE_IN_MESSAGE}
        request = {"operation": operation, **sent}
        try:
            answer, stopped = await self._request("workspace", request, timeout_ms)
        except RemoteError as exc:
            raise ValueError(str(exc)[:1000]) from None
        if answer and "answer" in answer:
            return values.decode_plain(answer["answer"])
        if answer and answer.get("interrupted"):
            why = self._stop_fields(stopped, timeout_ms)["error"] if stopped else "it was stopped"
            raise SandboxError(f"the guest did not finish {operation}: {why}")
        fields = await self._death(stopped, timeout_ms)
        lost = "its variables and files are lost"
        raise SandboxError(f"the guest ended during {operation}, {lost}: {fields['error']}")

    def take_output(self, stream: int, data: bytes) -> None:
        """Take output that arrives as messages: stream 1 is stdout, 2 is stderr."""
        self._captures[stream - 1].feed(data)

    def last_words(self) -> str:
        """Return what a guest that did not start wrote to stderr."""
        self._drain()
        return self._captures[1].finish()[0].strip()

    def cancel(self) -> None:
        """Stop the running request, if there is one."""
        self._stop_with(Outcome.CANCELLED)

    def close(self) -> None:
        """Let go of the pipes; the process is the backend's to end."""
        self.alive = False
        self._deadline.cancel()
        self._channel.close()
        for fd in self._fds:
            self._loop.remove_reader(fd)
            os.close(fd)
        self._fds = []

    async def _run(
        self, method: str, params: Mapping[str, Any], read: Reader, timeout_ms: float
    ) -> ResultFields:
        """Return the result's fields, with the output and every fault of the guest."""
        try:
            answer, stopped = await self._request(method, params, timeout_ms)
        except RemoteError as exc:
            answer, stopped, self._violation = None, None, f"it refused to run: {str(exc)[:200]}"
        fields: ResultFields | None = None
        if answer is not None:
            try:
                fields = read(answer)
            except result_fields.SHAPE_ERRORS:
                self._violation = "an answer of no known shape"
                self._process.kill()
        if fields is None:
            fields = await self._death(stopped, timeout_ms)
        elif fields["kind"] is Outcome.CANCELLED:  # only the host knows whether it has stopped it
            if stopped:
                fields.update(self._stop_fields(stopped, timeout_ms))
            else:
                fields["kind"] = Outcome.ERROR
        if self._readable.poll(0):  # one system call finds that most cells print nothing
            self._drain()
        output, errors = self._captures
        self._captures = self._idle_captures
        if output.blank and errors.blank:
            return fields
        fields["stdout"], cut_out = output.finish()
        fields["stderr"], cut_errors = errors.finish()
        fields["truncated"] = cut_out or cut_errors
        return fields

    async def _request(
        self, method: str, params: Mapping[str, Any], timeout_ms: float
    ) -> tuple[GuestAnswer | None, Outcome | None]:
        """Return the guest's answer (None: it died) and why it was stopped (None: it was not)."""
        self._stop = stop = Wake(self._loop)
        stopped: Outcome | None = None
        request = self._channel.request(method, params, stop)
        self._deadline.set(timeout_ms / 1000)
        limited = self._config.policy.cpu_seconds
        watch = asyncio.ensure_future(self._watch_cpu()) if limited else None
        try:
            stopped = await stop
            if request.done():  # the answer counts, however late; no interrupt may come after it
                stopped = None
            else:
                await finish(self._interrupt(request, method))
            answer = request.result()
            return answer if isinstance(answer, dict) else {}, stopped
        except ChannelEndedError as exc:
            self._violation, self._fault = exc.violation, exc.fault
            return None, stopped
        except asyncio.CancelledError:  # the caller has gone: the guest must not go on alone
            if not request.done():
                await finish(self._interrupt(request, method))
            self._drain()  # what it has printed is not the next cell's
            raise
        finally:
            request.cancel()
            self._deadline.clear()
            if watch:
                watch.cancel()
            self._stop = None
            if self._channel.calls:
                self._channel.cancel_calls()

    async def _interrupt(self, request: asyncio.Future[Any], method: str) -> None:
        least = SHELL_GRACE_SECONDS if method == "shell" else 0
        self._process.interrupt()
        grace = max(least, self.grace_seconds)
        if not await ends_within_grace(request, grace, self._process.usage):
            self.alive = False
            self._note_usage()
            self._process.kill()
            await asyncio.wait({request})
        else:
            await self._settle()

    def _note_usage(self) -> None:
        """Read what the guest has used before it is killed: without a control group it is lost."""
        usage = self._process.usage
        self._used = usage.peak_memory(), usage.cpu_seconds()

    async def _settle(self) -> None:
        """Let no interrupt hit the next request: wait, a little, until the guest has seen it."""
        self._interrupts += 1
        with contextlib.suppress(TimeoutError, RemoteError, ChannelEndedError):
            async with asyncio.timeout(SETTLE_SECONDS):
                while await self._interrupts_seen() < self._interrupts:  # noqa: ASYNC110 - asked
                    await asyncio.sleep(SETTLE_POLL_SECONDS)

    async def _interrupts_seen(self) -> int:
        answer = await self._channel.request("interrupts", {})
        seen = answer.get("seen") if isinstance(answer, dict) else None
        return seen if isinstance(seen, int) else self._interrupts

    def _stop_with(self, reason: Outcome) -> None:
        if self._stop is not None:
            self._stop.set(reason)

    async def _watch_cpu(self) -> None:
        limit = self._config.policy.cpu_seconds
        assert limit is not None
        with contextlib.suppress(asyncio.CancelledError, SandboxError):
            start = await self._process.cpu_seconds()
            while await self._process.cpu_seconds() - start < limit:  # noqa: ASYNC110 - a meter
                await asyncio.sleep(CPU_POLL_SECONDS)
            self._stop_with(Outcome.CPU)

    async def _death(self, stopped: Outcome | None, timeout_ms: float) -> ResultFields:
        """Return the result's fields after the process has ended; end it if it has not."""
        self.alive = False
        if not (stopped or self._violation or self._fault):  # how it ended is being told
            await asyncio.wait({self._process.ended}, timeout=GRACE_SECONDS)
        self._process.kill()  # it may live on with a closed channel
        report = await asyncio.shield(self._process.ended)
        memory, cpu = self._used
        if stopped:
            fields = self._stop_fields(stopped, timeout_ms)
        elif report.out_of_memory:
            fields = result_fields.out_of_memory(self._config.policy, report.peak_memory)
        elif self._violation:
            fields = result_fields.broken(self._violation)
        elif self._fault:
            fields = result_fields.ended_by_host(self._fault)
        else:
            fields = result_fields.death(report)
        fields["state_lost"] = True
        fields["memory_used_bytes"] = memory if report.peak_memory is None else report.peak_memory
        fields["cpu_seconds"] = cpu if report.cpu_seconds is None else report.cpu_seconds
        return fields

    def _stop_fields(self, reason: Outcome, timeout_ms: float) -> ResultFields:
        return result_fields.stopped(reason, timeout_ms, self._config.policy)

    def _on_output(self, index: int) -> int:
        try:
            data = os.read(self._fds[index], READ_SIZE)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._fds[index])
        self._captures[index].feed(data)
        return len(data)

    def _drain(self) -> None:
        """Read the pipes until they are empty: the guest flushed them before it answered."""
        for index in range(len(self._fds)):
            left = DRAIN_LIMIT
            while left > 0 and (size := self._on_output(index)):
                left -= size


class Deadline:
    """Calls back when time is up. Setting it again costs no new timer: most are never reached."""

    def __init__(self, on_late: Callable[[], None]) -> None:
        self._loop, self._on_late = asyncio.get_running_loop(), on_late
        self._at: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, seconds: float) -> None:
        """Call back in so many seconds, instead of the time set before."""
        self._at = at = self._loop.time() + seconds
        if self._timer is None or self._timer.when() > at:
            self.cancel()
            self._timer = self._loop.call_at(at, self._ring)

    def clear(self) -> None:
        """Call back no more; the timer stays for the next time."""
        self._at = None

    def cancel(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        """Call back, or start a timer for the rest if the deadline was moved meanwhile."""
        self._timer = None
        if self._at is None:
            return
        left = self._at - self._loop.time()
        if left > 0:
            self.set(left)
        else:
            self._at = None
            self._on_late()


async def ends_within_grace(request: asyncio.Future[Any], seconds: float, usage: Usage) -> bool:
    """Wait for a request whose guest was interrupted; return False if it does not end.

    The guest has `seconds` to react, and more where it gets no CPU time to do so: while it waits
    for a core. One that sleeps through the interrupt, or computes on, has no more.
    """
    loop, before = asyncio.get_running_loop(), usage.cpu_seconds()
    end = loop.time() + max(seconds, LONGEST_GRACE_SECONDS)
    while True:
        done, _ = await asyncio.wait({request}, timeout=min(seconds, end - loop.time()))
        if done:
            return True
        used = usage.cpu_seconds()
        if used is None or before is None or used - before >= _REACTED * seconds:
            return False
        if loop.time() >= end or not usage.is_runnable():
            return False


async def finish(work: Coroutine[Any, Any, None]) -> None:
    """Await `work` to its end, also if the caller is cancelled meanwhile; only then raise that."""
    task, cancelled = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as exc:
            cancelled = exc
    task.result()
    if cancelled is not None:
        raise cancelled
