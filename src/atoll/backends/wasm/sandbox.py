"""PythonSandbox: a session in CPython on WebAssembly, with fuel, in a jailed worker."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from atoll.backends.wasm import build, limit_messages, packages
from atoll.backends.wasm.counters import Ending
from atoll.backends.wasm.launch import launch, with_packages
from atoll.config import SandboxConfig
from atoll.errors import ConfigError
from atoll.jail.measure import probe
from atoll.jail.supervisor.spec import GUEST_HOME
from atoll.packages.progress import Progress
from atoll.packages.sandbox import PackagedSandbox
from atoll.policy import Capability, Isolation, names_keywords
from atoll.sandbox.base import check_code

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from atoll.backends.wasm.build import Built
    from atoll.backends.wasm.counters import Counters
    from atoll.launch.handshake import RunningGuest
    from atoll.log import SandboxLogger
    from atoll.policy import ExecutionPolicy
    from atoll.sandbox.availability import Availability
    from atoll.types import SandboxResult

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

        async with PythonSandbox({"fuel_budget": 10**9}, workspace=folder) as box:
            result = await box.execute("print('Hello')")

    It takes policy, workspace, logger and wasm_binary_path, by name or position, or a SandboxConfig
    as the first argument or as `config`. The first call starts it, unless initialize() did.
    """

    backend: ClassVar[str] = "wasm"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability) - MISSING

    _not_shown: ClassVar[set[str]] = {GUEST_HOME}
    _built: Built
    _counters: Counters

    def __init__(
        self,
        policy: SandboxConfig | ExecutionPolicy | Mapping[str, Any] | None = None,
        workspace: str | Path | None = None,
        logger: SandboxLogger | None = None,
        wasm_binary_path: str | Path | None = None,
        *,
        config: SandboxConfig | None = None,
    ) -> None:
        if isinstance(policy, SandboxConfig):
            config, policy = policy, None
        given = {"policy": policy, "workspace": workspace, "logger": logger}
        given |= {"wasm_binary_path": wasm_binary_path}
        options: Any = {name: value for name, value in given.items() if value is not None}
        super().__init__(replace(config or SandboxConfig(backend=self.backend), **options))
        self._starting = asyncio.Lock()

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
        return await run_untrusted_python(
            code, sandbox=self, timeout_ms=timeout_ms, key=key, inject_setup=inject_setup
        )

    async def _run_untrusted(
        self, code: str, timeout_ms: float | None, key: str | None, *, setup: bool | None
    ) -> SandboxResult:
        check_code(code)
        await self._start_once()
        return await self._run_cell(code, timeout_ms, key, setup=setup)

    @contextlib.asynccontextmanager
    async def _in_guest(self) -> AsyncIterator[RunningGuest]:
        await self._start_once()
        async with super()._in_guest() as guest:
            yield guest

    async def _start_once(self) -> None:
        if self._open or self._destroyed:
            return
        async with self._starting:
            if not self._open and not self._destroyed:
                await self.initialize(self._config.context)

    @classmethod
    async def availability(cls, config: SandboxConfig) -> Availability:
        """Return whether this backend can run here."""
        return await limit_messages.availability(config)

    async def _prepare(self) -> Isolation:
        binary = build.chosen(self._config)
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


async def run_untrusted_python(
    code: str,
    *,
    sandbox: PythonSandbox | None = None,
    timeout_ms: float | None = None,
    key: str | None = None,
    inject_setup: bool | None = None,
    **options: Any,
) -> SandboxResult:
    """Run code in WebAssembly: in the session of `sandbox`, or in a fresh sandbox of its own.

    All guest code of this backend passes here. The guest is started if it does not run: its worker
    sets WASI up (see instance.py), under the limits of the sandbox's policy. `options` are fields
    of SandboxConfig, for a fresh sandbox.
    """
    if sandbox is None:
        config = SandboxConfig(**{**options, "backend": PythonSandbox.backend})
        async with PythonSandbox(config) as fresh:
            return await fresh.execute(
                code, timeout_ms=timeout_ms, key=key, inject_setup=inject_setup
            )
    if options:
        raise ConfigError(f"{', '.join(options)}: options of a new sandbox, and one was given")
    return await sandbox._run_untrusted(code, timeout_ms, key, setup=inject_setup)  # noqa: SLF001 - the class above
