"""A sandbox around one guest process, which is started again after it was lost.

A backend's launcher starts guests; the rest is here.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextvars import copy_context
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, Unpack, cast

from atoll.concurrency.background import Background
from atoll.config import SandboxConfig
from atoll.errors import (
    SandboxClosedError,
    SandboxError,
    SandboxLostError,
    StateError,
    UnsupportedError,
)
from atoll.files.direct import FolderFiles
from atoll.launch import folders
from atoll.launch.guest_ports import GuestPorts
from atoll.launch.launcher import Starts
from atoll.launch.processes import GuestProcesses
from atoll.log import SECURITY_EVENTS
from atoll.policy import Capability, Isolation, check_positive
from atoll.sandbox import command as commands
from atoll.sandbox import context as contexts
from atoll.sandbox import guard, signatures, verbs
from atoll.sandbox.base import (
    CLOSED,
    MAX_CODE_LENGTH,
    NOT_STARTED,
    cell_params,
    check_code,
)
from atoll.sandbox.idempotency import KeyedResults
from atoll.sandbox.turns import TurnLock
from atoll.sandbox.variables import LISTING_TIMEOUT_MS
from atoll.state import envelope, transfer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from atoll.config import Handler
    from atoll.files.base import Files
    from atoll.guest.shared.messages import Json
    from atoll.launch.handshake import CpuReading, RunningGuest
    from atoll.launch.launcher import Launcher
    from atoll.sandbox.base import ExecuteOptions, ToolChange
    from atoll.sandbox.command import Command, CommandOptions
    from atoll.sandbox.wire.answers import GuestAnswer
    from atoll.types import CodeFault, CommittedImage, ExecuteResponse, ProcessInfo, SandboxResult

R = TypeVar("R")
STATE_TIMEOUT_MS = 30_000
_ENDINGS = Background()
"""Guests whose destroy() was cancelled."""


class GuestSandbox(GuestPorts):
    """One guest at a time. A backend brings the launcher, and says what it can do."""

    runtime_memory: ClassVar[int] = 32 << 20
    launcher: ClassVar[type[Launcher]]
    """What starts this backend's guests."""

    def __init__(
        self, config: SandboxConfig | None = None, launcher: Launcher | None = None
    ) -> None:
        self._config = config or SandboxConfig(backend=self.backend)
        super().__init__(self._config.policy, self._config.workspace, self._config.logger)
        self._launcher = launcher or self.launcher(self._config)
        self._guards = list(filter(None, (self._config.guard, self._launcher.own_guard)))
        self._workspace_path = str(self.workspace) if self.workspace else None
        self._guest: RunningGuest | None = None
        self._context: Any = None
        self._shared: contexts.Context | None = None
        self._level = Isolation.NONE
        self._turn = TurnLock()
        self._by_key = KeyedResults()
        self._open = self._report_state_lost = self._changed = self._tools_changed = False
        self._never_used = False
        """Whether nothing was done in the guest since it was started."""

    @property
    def isolation(self) -> Isolation:
        """The level that this sandbox really has."""
        return self._level

    @property
    def cold_start(self) -> str | None:
        """Why a pool started the guest instead of forking it off a zygote; None if it did not."""
        return self._launcher.cold_start

    @property
    def context_is_shared(self) -> bool:
        """Whether the guest's `context` lies in shared memory instead of being a copy."""
        return self._guest is not None and self._guest.context_shared

    async def initialize(self, context: Any = None) -> None:
        """Start a guest with `context`. A running guest is ended, and its state is lost."""
        if self._config.guard is not None:
            guard.require(self._config.guard)
        self._level = await self._launcher.prepare()
        if self._config.network is not None:
            self._launcher.check_network(self.capabilities)
        async with self._turn:
            await self._release()
            shared = None if context is None else await asyncio.to_thread(contexts.share, context)
            self._shared, self._context = shared, None if shared else context
            self._open, self._destroyed = True, False
            await self._start(Starts())

    async def execute(
        self,
        code: str,
        *,
        timeout_ms: float | None = None,
        key: str | None = None,
        **options: Unpack[ExecuteOptions],
    ) -> SandboxResult:
        """Run a cell. After a result with `state_lost` the next cell gets a fresh guest."""
        cell = cell_params(self.backend, options) if options else {}
        if self._launcher.no_cells is not None:
            raise self._launcher.no_cells
        limit = self._config.timeout_ms if timeout_ms is None else self._timeout(timeout_ms)
        if type(code) is not str or len(code) > MAX_CODE_LENGTH:
            check_code(code)
        if not self._open:
            self._require_open()
        for name in self._guards:
            code, refusal = await self._guarded(code, name)
            if refusal is not None:
                return refusal
        if key is None:
            return await self._execute(code, limit, cell)
        return await self._by_key.once(key, code, lambda: self._execute(code, limit, cell))

    async def _execute(self, code: str, limit: float, cell: Json) -> SandboxResult:
        async with self._turn:
            if self._logs():
                self.logger.log_execution_start("python", self.policy, code)
            guest = self._guest
            if guest is None or self._never_used or guest.session.dead or not self._open:
                result = await self._execute_first(code, limit, cell)
            else:
                result = await self._execute_in(guest, code, limit, cell)
        if result.kind in SECURITY_EVENTS or self._logs():
            self._log_execution_metrics(result)
        return result

    async def _execute_first(self, code: str, limit: float, cell: Json) -> SandboxResult:
        """Run a cell in a guest that may be new; if that is lost unread, run it in another."""
        starts = Starts()
        while True:
            guest = await self._live_guest(starts)
            is_new, self._never_used, lost = self._never_used, False, self._report_state_lost
            try:
                result = await self._execute_in(guest, code, limit, cell)
            except SandboxLostError:
                if not (is_new and guest.session.unread and await starts.again()):
                    raise
            else:
                if not (is_new and guest.session.unread and await starts.again()):
                    return result
            self._report_state_lost = lost

    async def _execute_in(
        self, guest: RunningGuest, code: str, limit: float, cell: Json
    ) -> SandboxResult:
        lost, self._report_state_lost = self._report_state_lost, False
        changed, self._changed = self._changed, False
        callers = guest.bridge.callers
        callers[None] = copy_context()
        try:
            result = await guest.session.execute(
                code,
                limit,
                look_again=changed,
                cell=cell,
                isolation=self._level,
                image=self._launcher.image_digest,
                workspace_path=self._workspace_path,
                state_lost=lost,
                cold_start=self._launcher.cold_start,
            )
            if self._launcher.measures:
                result = self._launcher.measured(guest, result)
            if guest.network is not None:
                result = guest.with_network(result, self._config.on_stderr)
        except BaseException:  # a cancelled call has no result that says so: the next one does
            self._report_state_lost = lost or not guest.session.alive
            raise
        finally:
            del callers[None]
            if not guest.session.alive:
                await self._release()
        return result

    async def shell(
        self,
        command: Command,
        *,
        timeout_ms: float | None = None,
        **options: Unpack[CommandOptions],
    ) -> ExecuteResponse:
        """Run a command with bash, or sh; what it leaves running ends with the sandbox."""
        if Capability.SHELL not in self.capabilities:
            raise self._unsupported(Capability.SHELL)
        limit, params = self._timeout(timeout_ms), commands.to_params(command, options)
        async with self._in_guest() as guest:
            if self._level < Isolation.JAILED:
                raise UnsupportedError(self.backend, f"run a shell where it is only {self._level}")
            self.logger.log_execution_start("shell", self.policy, commands.shown(command))
            response = await guest.session.shell(params, limit)
            if guest.network is not None:
                use = guest.network.take()
                words = use.unsaid(response.output) if response.exit_code else ""
                response = replace(response, network=use, output=response.output + words)
        self.logger.log_shell_complete(response)
        return response

    async def ask_process(self, request: verbs.ProcessRequest[R]) -> R:
        """Carry out a request about processes, at once: also while a cell runs."""
        if Capability.PROCESSES not in self.capabilities:
            raise self._unsupported(Capability.PROCESSES)
        self._require_open()
        if isinstance(request, verbs.Start):
            return cast("R", await self._start_process(request))
        if self._guest is not None:
            return await self._guest.processes.carry_out(request)
        return await GuestProcesses().carry_out(request)

    async def _start_process(self, request: verbs.Start) -> ProcessInfo:
        guest = await self._guest_at_once()
        if self._level < Isolation.JAILED:
            raise UnsupportedError(self.backend, f"start processes where it is only {self._level}")
        self._changed, self._never_used = True, False
        env = {**self._launcher.process_env(), **guest.network_env}
        return await guest.processes.start(request, env, guest.lease.start_process)

    @property
    def any_process_runs(self) -> bool:
        """Whether a process runs beside the cells."""
        return self._guest is not None and self._guest.processes.any_running

    async def _guest_at_once(self) -> RunningGuest:
        """Return the guest, also while a cell runs; start one if there is none."""
        guest = self._guest
        if guest is None or guest.session.dead:
            async with self._turn:
                guest = await self._ensure()
        return guest

    @property
    def tools(self) -> Mapping[str, Handler]:
        """The host functions that guest code may call now, by name."""
        return self._config.tools

    async def _change_tools(self, change: ToolChange) -> None:
        async with self._turn:
            guest, old = await self._ensure(), self._config.tools
            self._config = replace(self._config, tools=change(old))
            self._tools_changed = True
            guest.bridge.exchange_tools(old, self._config.tools)
            await self._tell_tools(guest)

    async def _tell_tools(self, guest: RunningGuest) -> None:
        """Have a guest offer the present tools; the one after a guest that dies has them, too."""
        try:
            described = signatures.describe_all(guest.bridge.tools)
            await guest.session.set_tools(described, self._timeout(None))
        finally:
            self._report_state_lost |= not guest.session.alive
            await self._release_if_dead(guest)

    async def validate_code(self, code: str) -> bool:
        """Return whether the code compiles in the guest's Python, without running it."""
        return await self.find_fault(code) is None

    async def find_fault(self, code: str) -> CodeFault | None:
        """Return why the code does not compile in the guest's Python; None if it does."""
        check_code(code)
        async with self._in_guest() as guest:
            return await guest.session.find_fault(code, self._timeout(None))

    async def ask_variable(self, request: verbs.VariableRequest) -> GuestAnswer:
        """Ask the guest about a variable; its answer is not checked yet."""
        limit = self._timeout(None)
        if isinstance(request, verbs.HasVariable | verbs.ListVariables):
            limit = min(limit, LISTING_TIMEOUT_MS)
        async with self._in_guest() as guest:
            return await guest.session.ask_variable(request, limit)

    async def save(self) -> bytes:
        """Return variables and files as signed bytes; StateError if they cannot be saved."""
        return await self._save(whole=False)

    async def save_whole(self) -> bytes:
        """Return all of the session that can be saved, private names and environment too.

        The state's `left_out` is empty if the session can go on from it as if it had never ended.
        """
        return await self._save(whole=True)

    async def commit(
        self, target: str, *, push: bool = False, compression: str = "gzip"
    ) -> CommittedImage:
        """Make an image of the session's own and its changes, as a layer on top."""
        request = verbs.Commit.of(target, push=push, compression=compression)
        async with self._in_guest() as guest:
            return await self._launcher.commit(guest, request)

    async def _save(self, *, whole: bool) -> bytes:
        async with self._in_guest() as guest:
            if self._report_state_lost:
                raise StateError("the session's variables were lost: there is nothing to save")
            payload, facts = await transfer.save(
                guest.session,
                guest.lease,
                {**self._launcher.state_params(), "whole": whole},
                self._state_timeout(),
            )
        version, tier = self._launcher.version, self._launcher.preloaded
        return await asyncio.to_thread(envelope.seal, payload, facts, version, tier)

    @cached_property
    def files(self) -> Files:
        """The guest's files, through descriptors of its folders; usable while a cell runs."""
        files = FolderFiles(self.folders, self.policy.file_size_bytes)
        files.backend = self.backend
        if Capability.SHELL in self.capabilities:  # it reaches those outside the working folder
            return files.reach_by(self.shell)
        return files

    async def folders(self, changing: bool) -> dict[str, int]:  # noqa: FBT001 - as it is called
        """Descriptors of the guest's folders by their names, the caller's to close.

        What is changed by hand is not the next cell's doing: the guest has to look again.
        """
        self._changed |= changing
        self._never_used &= not changing
        guest = await self._guest_at_once()
        shown = await guest.lease.folders()
        return folders.by_name(
            shown,
            hidden=self._launcher.hidden_folders,
            workspace=self.workspace,
            more=self.policy.folders,
        )

    def usage_now(self) -> dict[str, int | None]:
        """Return memory in use and processes, as the host counts them; nothing without a guest."""
        if self._guest is None:
            return {}
        usage = self._guest.lease.usage
        return {"memory_bytes": usage.memory(), "processes": usage.processes()}

    async def cpu_reading(self) -> CpuReading | None:
        """Return the CPU time of all processes of the guest, as the host counts it."""
        guest = self._guest
        if guest is None or guest.session.dead:
            return None
        return await guest.cpu_reading()

    async def freeze(self) -> None:
        """Stop all that the guest runs until `thaw`; UnsupportedError if this host cannot."""
        async with self._turn:
            guest = await self._ensure()
            if not await asyncio.to_thread(guest.lease.usage.freezer().freeze):
                raise UnsupportedError(self.backend, "freeze a session on this machine")

    async def thaw(self) -> None:
        """Let the guest run again."""
        if self._guest is not None:
            await asyncio.to_thread(self._guest.lease.usage.freezer().thaw)

    async def cancel(self) -> None:
        """Interrupt the running cell; kill the guest if it does not obey."""
        if self._guest is not None:
            self._guest.session.cancel()

    async def destroy(self) -> None:
        """End the guest and everything it started."""
        self._open, self._destroyed = False, True
        if self._forwards is not None:
            await self._forwards.close()
        await self.cancel()
        try:
            await self._turn.acquire()
        except asyncio.CancelledError:  # a cell has not ended yet: release all when it has
            _ENDINGS.spawn(self._release_in_turn())
            raise
        try:
            await self._release_all()
        finally:
            self._turn.release()

    async def _release_in_turn(self) -> None:
        async with self._turn:
            await self._release_all()

    async def _release_all(self) -> None:
        """End the guest, and release what the sandbox holds beside it, even if cancelled."""
        self._shared = self._context = None
        try:
            await self._release()
        finally:
            self._launcher.close()

    def _require_open(self) -> None:
        if not self._open:
            raise SandboxClosedError(CLOSED if self._destroyed else NOT_STARTED)

    @contextlib.asynccontextmanager
    async def _in_guest(self) -> AsyncIterator[RunningGuest]:
        """Yield a guest that lives, in its turn; if it dies meanwhile, the next result says so."""
        async with self._turn:
            guest = await self._ensure()
            try:
                yield guest
            finally:
                self._report_state_lost |= not guest.session.alive
                await self._release_if_dead(guest)

    async def _ensure(self) -> RunningGuest:
        """Return a guest that lives, for something that is to be done in it."""
        guest, self._never_used = await self._live_guest(), False
        return guest

    async def _live_guest(self, starts: Starts | None = None) -> RunningGuest:
        """Return the guest, or another one if it has died; that counts among `starts`."""
        self._require_open()
        if self._guest is not None and self._guest.session.dead:
            await self._release()
            self._report_state_lost |= not self._never_used
        if self._guest is None:
            await self._start(starts or Starts())
        assert self._guest is not None
        return self._guest

    async def _start(self, starts: Starts) -> None:
        """Start a guest; start another if it is lost, since nothing of the caller's ran in it."""
        payload = None if self._config.state is None else await self._saved_payload()
        while True:
            try:
                await self._start_from(payload)
            except SandboxError as exc:
                if not (exc.retryable and await starts.again()):
                    raise
            else:
                self._never_used = True
                return

    async def _start_from(self, payload: memoryview | None) -> None:
        guest = await self._launcher.launch(self._config, self._context, self._shared)
        self._guest = guest
        if payload is None:
            return
        try:
            await transfer.restore(
                guest.session,
                guest.lease,
                payload,
                self._launcher.state_params(),
                self._state_timeout(),
            )
        except BaseException:
            await self._release()
            raise

    async def _saved_payload(self) -> memoryview:
        """Return the state to start with, checked before a guest is started."""
        self._launcher.state_params()  # which says if it cannot
        state, limit = self._config.state, self._config.max_state_bytes
        assert state is not None
        return await asyncio.to_thread(envelope.open_for, state, self._launcher.version, limit)

    def _state_timeout(self) -> float:
        return min(self._config.timeout_ms, STATE_TIMEOUT_MS)

    async def _release_if_dead(self, guest: RunningGuest) -> None:
        """Release a guest that has died, so that the next call starts another."""
        if not guest.session.alive:
            await self._release()

    async def _release(self) -> None:
        guest, self._guest = self._guest, None
        if guest is not None:
            await guest.close()

    def _timeout(self, timeout_ms: float | None) -> float:
        check_positive("timeout_ms", timeout_ms)
        return self._config.timeout_ms if timeout_ms is None else timeout_ms
