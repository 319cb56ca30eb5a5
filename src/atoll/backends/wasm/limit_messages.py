"""The messages of results that a limit ended, and the report for `atoll doctor`."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from atoll.backends.wasm import build
from atoll.backends.wasm.counters import Ending
from atoll.errors import BackendUnavailableError, ComponentMissingError, ConfigError
from atoll.jail.measure import probe
from atoll.policy import MIB, Isolation
from atoll.sandbox.availability import Availability
from atoll.types import Outcome

if TYPE_CHECKING:
    from atoll.config import SandboxConfig
    from atoll.policy import ExecutionPolicy
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
