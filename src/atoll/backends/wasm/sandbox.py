"""PythonSandbox: a session in CPython on WebAssembly, with fuel, in a jailed worker."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from atoll.backends.wasm import build, limit_messages, packages
from atoll.backends.wasm.counters import Ending
from atoll.backends.wasm.launch import launch, with_packages
from atoll.backends.wasm.progress import Progress
from atoll.config import SandboxConfig
from atoll.jail import probe
from atoll.jail.spec import GUEST_HOME
from atoll.packages.sandbox import PackagedSandbox
from atoll.policy import Capability, Isolation, names_keywords
from atoll.sandbox import check_code

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from atoll.availability import Availability
    from atoll.backends.wasm.build import Built
    from atoll.backends.wasm.counters import Counters
    from atoll.launch.handshake import RunningGuest
    from atoll.log import SandboxLogger
    from atoll.policy import ExecutionPolicy
    from atoll.types import CodeFault, SandboxResult

MISSING = frozenset(
    {
        Capability.FORK,
        Capability.INTERPRETER,
        Capability.NETWORK,
        Capability.SHARED_CONTEXT,
        Capability.SHELL,
        Capability.SUBPROCESS,
        Capability.THREADS,
        Capability.LIMIT_PROCESSES,
    }
)


class PythonSandbox(PackagedSandbox):
    """CPython compiled to WebAssembly: the guest makes no system call on the host.

        async with PythonSandbox(policy={"fuel_budget": 10**9}, workspace=folder) as box:
            result = await box.execute("print('Hello')")

    It takes a SandboxConfig, or the options policy, workspace, logger and wasm_binary_path. The
    first call starts it, unless initialize() did.
    """

    backend: ClassVar[str] = "wasm"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability) - MISSING

    _not_shown: ClassVar[set[str]] = {GUEST_HOME}
    _built: Built
    _counters: Counters

    def __init__(
        self,
        config: SandboxConfig | None = None,
        *,
        policy: ExecutionPolicy | Mapping[str, Any] | None = None,
        workspace: str | Path | None = None,
        logger: SandboxLogger | None = None,
        wasm_binary_path: str | Path | None = None,
    ) -> None:
        given = {"policy": policy, "workspace": workspace, "logger": logger}
        given |= {"wasm_binary_path": wasm_binary_path}
        options: Any = {name: value for name, value in given.items() if value is not None}
        super().__init__(replace(config or SandboxConfig(backend=self.backend), **options))

    @names_keywords("option of execute")
    async def execute(
        self,
        code: str,
        *,
        timeout_ms: float | None = None,
        key: str | None = None,
        inject_setup: bool | None = None,
    ) -> SandboxResult:
        """Run a cell; `inject_setup` says whether it may import from /app/site-packages.

        Unset, it is as the configuration says. The first call starts the sandbox.
        """
        check_code(code)
        await self._start_once()
        return await self._run_cell(code, timeout_ms, key, setup=inject_setup)

    async def find_fault(self, code: str) -> CodeFault | None:
        """Return why the code does not compile in the guest's Python; None if it does."""
        check_code(code)
        await self._start_once()
        return await super().find_fault(code)

    async def _start_once(self) -> None:
        if not self._open and not self._destroyed:
            await self.initialize(self._config.context)

    @classmethod
    async def availability(cls, config: SandboxConfig) -> Availability:
        """Return whether this backend can run here."""
        return await limit_messages.availability(config)

    async def _prepare(self) -> Isolation:
        binary = self._config.wasm_binary_path
        found = build.find() if binary is None else await asyncio.to_thread(build.find, binary)
        if found is None:
            title = Progress("atoll: first use of the backend wasm")
            found = await asyncio.to_thread(build.ensure, binary, title)
        self._built = found
        await self._have_packages(self._config, functools.partial(packages.target, found))
        least = min(self._config.min_isolation or Isolation.CONFINED, Isolation.JAILED)
        self._jail = await probe.level_for(self.backend, replace(self._config, min_isolation=least))
        return Isolation.VIRTUAL

    async def _launch(self) -> RunningGuest:
        config = self._config
        if self._packages is not None:
            config = with_packages(config, self._packages.environment)
        guest, self._counters = await launch(
            config, self._built, self._jail, self._context, self._shared
        )
        return guest

    @property
    def _version(self) -> tuple[int, ...]:
        return self._built.python

    def _state_params(self) -> dict[str, Any]:
        return {"max_bytes": self._config.max_state_bytes, "cloudpickle": ""}

    def _measured(self, guest: RunningGuest, result: SandboxResult) -> SandboxResult:
        fuel, ending = self._counters.read()
        if not guest.session.alive and ending is Ending.NONE:  # killed, and not counted to the end
            return result
        result = self._advised(result, limit_messages.explain(result, ending, fuel, self.policy))
        return replace(result, fuel_consumed=fuel)

    def _advised(self, before: SandboxResult, after: SandboxResult) -> SandboxResult:
        """Pass advice to the stderr callback as well, unless the error has it."""
        advice_alone = after.stderr[len(before.stderr) :].strip("\n")
        if advice_alone and after.error == before.error and self._config.on_stderr is not None:
            self._config.on_stderr(advice_alone)
        return after
