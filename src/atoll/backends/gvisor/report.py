"""Finds out whether gVisor runs here, and on which platform, by running a program once."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING

from atoll.backends.gvisor import runsc
from atoll.backends.gvisor.bundle import RUNSC, configuration, limits_outside
from atoll.errors import BackendUnavailableError, IsolationError, SandboxError
from atoll.jail.measure import probe
from atoll.jail.supervisor import client
from atoll.jail.supervisor.spec import Bind, JailSpec
from atoll.jail.walls.container import GUEST_ROOT
from atoll.launch import interpreter
from atoll.policy import ExecutionPolicy, Isolation
from atoll.sandbox.availability import Availability

if TYPE_CHECKING:
    from atoll.backends.gvisor.runsc import Runsc
    from atoll.config import SandboxConfig
    from atoll.jail.measure.probe import HostReport

_TRUE = ("/bin/true",)
_WORDS = 600
_found: dict[Runsc, str] = {}


async def availability(config: SandboxConfig) -> Availability:
    """Return the report for `atoll doctor`."""
    try:
        result = await asyncio.to_thread(runsc.find)
        python = await asyncio.to_thread(interpreter.resolve, config.python)
        host = await probe.host()
        require_jail(host)
        used = await platform(result, tried=True)
    except BackendUnavailableError as exc:
        return Availability(usable=False, reason=exc.reason, hint=exc.hint)
    return Availability(
        usable=True,
        isolation=Isolation.KERNEL,
        limits=_limits(host),
        details={
            "runsc": f"{result.path} ({result.version})",
            "platform": f"{used} (it has {', '.join(result.platforms)})",
            "python": f"{python.path} ({'.'.join(map(str, python.version))})",
            "guest's user": "a fresh one for each sandbox" if host.switches_user else "yours",
            "cgroups": f"version {host.cgroup_version}" if host.cgroup_version else "not usable",
        },
    )


def require_jail(host: HostReport) -> None:
    """Raise BackendUnavailableError if gVisor itself cannot be jailed here."""
    if host.level < Isolation.JAILED:
        reason = f"gVisor needs a jail around it, and none can be had here ({host.failure})"
        raise BackendUnavailableError(runsc.BACKEND, reason, "`atoll doctor` says what it takes.")


def require_level(least: Isolation | None) -> None:
    """Raise IsolationError if a level above gVisor's is required."""
    if least is not None and least > Isolation.KERNEL:
        reason = f"{least} was asked for, and gVisor offers {Isolation.KERNEL}"
        raise IsolationError(runsc.BACKEND, reason, "Use backend='wasm' or 'pyodide'.")


async def platform(result: Runsc, *, tried: bool = False) -> str:
    """Return the platform to use: the first on which a program runs.

    Without `tried`, a single platform is assumed to work; otherwise the start fails.
    """
    if result in _found or (len(result.platforms) == 1 and not tried):
        return _found.get(result, result.platforms[0])
    failures = []
    for name in result.platforms:
        failure = await _try(result, name)
        if not failure:
            _found[result] = name
            return name
        failures.append(f"{name}: {failure}")
    raise BackendUnavailableError(runsc.BACKEND, f"runsc fails: {'; '.join(failures)}", runsc.HINT)


async def _try(result: Runsc, name: str) -> str:
    """Run a program in a container; return why it failed, or ""."""
    if await asyncio.to_thread(result.is_script):
        return f"{result.path} is a script, and a jail has no shell: name the program itself"
    read, write = os.pipe2(os.O_CLOEXEC)
    try:
        lease = client.request(_spec(result, name), [write] * 3)
        os.close(write)
        write = -1
        ended = await asyncio.shield(lease.ended)
        said = await asyncio.to_thread(os.read, read, _WORDS)
    except SandboxError as exc:
        return str(exc)
    finally:
        for fd in (read, write):
            if fd >= 0:
                os.close(fd)
    return "" if ended.exit == 0 else f"{said.decode(errors='replace').strip() or ended}"


def _spec(result: Runsc, name: str) -> JailSpec:
    policy = ExecutionPolicy()
    return JailSpec(
        jailed=True,
        argv=result.command(GUEST_ROOT + RUNSC, name, "run", "--bundle=/run", "probe"),
        env={},
        binds=(Bind(source=result.path, target=RUNSC),),
        workspace=None,
        limits=limits_outside(policy, 0),
        container=json.dumps(configuration(policy, _TRUE, {}, 0)),
    )


def _limits(host: HostReport) -> dict[str, str]:
    group = host.cgroup_version
    counted = f"cgroup v{group}" if group else "the supervisor's meter"
    return {
        "time": "interrupt, then kill",
        "memory": f"RLIMIT_AS of gVisor's kernel, {counted}",
        "processes": "RLIMIT_NPROC of gVisor's kernel",
        "cpu": counted if group else "not enforced",
        "disk": "size of a tmpfs",
        "file size": "RLIMIT_FSIZE of gVisor's kernel",
        "output": "cut by the host",
    }
