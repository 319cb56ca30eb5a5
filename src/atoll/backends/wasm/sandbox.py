"""PythonSandbox: a session in CPython on WebAssembly, with fuel, in a jailed worker."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from atoll.backends.wasm import build, packages
from atoll.backends.wasm.counters import Ending
from atoll.backends.wasm.launch import launch, with_packages
from atoll.config import SandboxConfig
from atoll.errors import BackendUnavailableError, ComponentMissingError, ConfigError
from atoll.jail.measure import probe
from atoll.jail.supervisor.spec import GUEST_HOME
from atoll.launch.launcher import Launcher
from atoll.launch.sandbox import GuestSandbox
from atoll.packages.held import HeldPackages
from atoll.packages.progress import Progress
from atoll.policy import MIB, Capability, Isolation
from atoll.sandbox.availability import Availability
from atoll.sandbox.base import check_code, check_options
from atoll.types import Outcome

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from atoll.backends.wasm.build import Built
    from atoll.backends.wasm.counters import Counters
    from atoll.guest.shared.messages import StateParams
    from atoll.launch.handshake import RunningGuest
    from atoll.log import SandboxLogger
    from atoll.policy import ExecutionPolicy
    from atoll.sandbox.base import ExecuteOptions
    from atoll.sandbox.context import Context
    from atoll.types import SandboxResult


MORE_FUEL = 10
MORE_MEMORY = 2
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '(\w+)", re.ASCII)


def explain(
    result: SandboxResult, ending: Ending, fuel: int, policy: ExecutionPolicy
) -> SandboxResult:
    """Return the result with the worker's reason, and a limit that would likely be enough."""
    if result.state_lost and ending is Ending.FUEL:
        return _out_of_fuel(result, fuel)
    if result.state_lost and ending is Ending.TRAP:
        return _trapped(result)
    if result.error_type == "ModuleNotFoundError" and (
        match := _NO_MODULE.match(result.error or "")
    ):
        return _not_installed(result, match[1])
    if result.error_type == "MemoryError" and policy.memory_bytes is not None:
        return _out_of_memory(result, policy.memory_bytes)
    return result


def _out_of_fuel(result: SandboxResult, fuel: int) -> SandboxResult:
    text = (
        f"OutOfFuel: the cell used all of its {fuel:,} units of fuel and was ended. If it is no "
        f"endless loop, ExecutionPolicy(fuel_budget={fuel * MORE_FUEL:_}) would likely do"
    )
    return replace(
        result,
        kind=Outcome.FUEL,
        error=text,
        error_type="OutOfFuel",
        exit_code=152,
        stderr=_with_line(result.stderr, text),
    )


def _trapped(result: SandboxResult) -> SandboxResult:
    cause = result.stderr.strip().rpartition("\n")[2] or "the instance trapped"
    text = f"WasmTrap: {cause}"
    return replace(result, kind=Outcome.CRASHED, error=text, error_type="WasmTrap", exit_code=134)


def _out_of_memory(result: SandboxResult, limit: int) -> SandboxResult:
    more = -(-limit * MORE_MEMORY // MIB) * MIB
    text = f"the limit is {limit:,} bytes: ExecutionPolicy(memory_bytes={more:_}) would likely do"
    return replace(result, stderr=_with_line(result.stderr, text))


def _not_installed(result: SandboxResult, package: str) -> SandboxResult:
    text = (
        f"if {package} is pure Python, `atoll wasm install {package}` adds it; "
        "packages with compiled parts run in the backends native and daemon"
    )
    return replace(result, stderr=_with_line(result.stderr, text))


def _with_line(text: str, line: str) -> str:
    return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{line}\n"


async def availability(config: SandboxConfig) -> Availability:
    """Return whether the backend can run here."""
    try:
        built = await asyncio.to_thread(build.find, build.chosen(config))
    except BackendUnavailableError as exc:
        return Availability(usable=False, reason=exc.reason, hint=exc.hint)
    except (ComponentMissingError, ConfigError) as exc:
        return Availability(usable=False, reason=str(exc))
    walls = await probe.host()
    if walls.level < Isolation.CONFINED:
        return Availability(usable=False, reason=walls.failure)
    jailed = walls.level >= Isolation.JAILED
    return Availability(
        usable=True,
        isolation=Isolation.VIRTUAL,
        hint="" if built else "the first use builds it: `atoll wasm build` does so now",
        limits={
            "time": "interrupt, then kill",
            "memory": "the linear memory's size",
            "fuel": "counted by wasmtime; limited if fuel_budget is set",
            "cpu": "cgroup" if walls.cgroup_version else "the supervisor's meter",
            "disk": "size of a tmpfs" if jailed else "not enforced",
            "file size": "RLIMIT_FSIZE",
            "output": "cut by the host",
        },
        details={
            "python": ".".join(map(str, built.python)) if built else "not built yet",
            "interrupt": "state is kept" if built and built.cells else "state is lost",
            "worker": str(walls.level),
        },
    )


MISSING = frozenset(
    {
        Capability.FORK,
        Capability.IMAGES,
        Capability.FOLDERS,
        Capability.INTERPRETER,
        Capability.NETWORK,
        Capability.PORTS,
        Capability.SHARED_CONTEXT,
        Capability.SHELL,
        Capability.PROCESSES,
        Capability.SUBPROCESS,
        Capability.THREADS,
        Capability.LIMIT_PROCESSES,
    }
)


class WasmLauncher(Launcher):
    """Starts a jailed worker that runs the component, and counts its fuel."""

    backend: ClassVar[str] = "wasm"
    hidden_folders: ClassVar[frozenset[str]] = frozenset({GUEST_HOME})
    measures: ClassVar[bool] = True

    _built: Built
    _counters: Counters

    def __init__(self, config: SandboxConfig) -> None:
        super().__init__(config)
        self._packages = HeldPackages()

    async def prepare(self) -> Isolation:
        """Find the component, or build it; find the packages, and the jail of the worker."""
        config, binary = self.config, build.chosen(self.config)
        built = build.find() if binary is None else await asyncio.to_thread(build.find, binary)
        if built is None:
            title = Progress("atoll: first use of the backend wasm")
            built = await asyncio.to_thread(build.ensure, binary, title)
        self._built = built
        await self._packages.find(config, functools.partial(packages.target, built))
        least = min(config.min_isolation or Isolation.CONFINED, Isolation.JAILED)
        jail = replace(config, min_isolation=least)
        self._jail = await probe.level_for(self.backend, jail)
        self.level = Isolation.VIRTUAL
        return self.level

    async def launch(
        self, config: SandboxConfig, context: Any, shared: Context | None
    ) -> RunningGuest:
        """Start a worker."""
        if self._packages.hold is not None:
            config = with_packages(config, self._packages.hold.environment)
        guest, self._counters = await launch(config, self._built, self._jail, context, shared)
        return guest

    @property
    def version(self) -> tuple[int, ...]:
        """The component's version."""
        return self._built.python

    def state_params(self) -> StateParams:
        """Return how large a state may be; the component has cloudpickle in it."""
        return {"max_bytes": self.config.max_state_bytes, "cloudpickle": ""}

    def measured(self, guest: RunningGuest, result: SandboxResult) -> SandboxResult:
        """Return the result with its fuel, and with advice where a limit ended it."""
        fuel, ending = self._counters.read()
        if not guest.session.alive and ending is Ending.NONE:  # killed, and not counted to the end
            return result
        explained = explain(result, ending, fuel, self.config.policy)
        advice = explained.stderr[len(result.stderr) :].strip("\n")
        if advice and explained.error == result.error and self.config.on_stderr is not None:
            self.config.on_stderr(advice)  # which no error says
        return replace(explained, fuel_consumed=fuel)

    def close(self) -> None:
        """Release the packages."""
        self._packages.close()


class PythonSandbox(GuestSandbox):
    """CPython compiled to WebAssembly: the guest makes no system call on the host.

        async with PythonSandbox({"fuel_budget": 10**9}, workspace=folder) as box:
            result = await box.execute("print('Hello')")

    It takes policy, workspace, logger and wasm_binary_path, by name or position, or a SandboxConfig
    as the first argument or as `config`. The first call starts it, unless initialize() did.
    """

    backend: ClassVar[str] = WasmLauncher.backend
    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability) - MISSING

    launcher: ClassVar[type[Launcher]] = WasmLauncher

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

    async def execute(
        self,
        code: str,
        *,
        timeout_ms: float | None = None,
        key: str | None = None,
        **options: Unpack[ExecuteOptions],
    ) -> SandboxResult:
        """Run a cell; `inject_setup` says whether it may import from /app/site-packages.

        Unset, it is as the configuration says. The first call starts the sandbox.
        """
        if options:
            check_options(self.backend, options)
        setup = options.get("inject_setup")
        return await run_untrusted_python(
            code, sandbox=self, timeout_ms=timeout_ms, key=key, inject_setup=setup
        )

    async def _run_untrusted(
        self, code: str, timeout_ms: float | None, key: str | None, *, setup: bool | None
    ) -> SandboxResult:
        check_code(code)
        await self._start_once()
        return await super().execute(code, timeout_ms=timeout_ms, key=key, inject_setup=setup)

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
        return await availability(config)


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
