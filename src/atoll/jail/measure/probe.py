"""What this host allows, found out by building a jail; if it does not, why, and what to type."""

from __future__ import annotations

import asyncio
import math
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.errors import (
    BackendUnavailableError,
    IsolationError,
    LimitUnsupportedError,
    SandboxError,
)
from atoll.jail.measure import host_facts, kernel_calls
from atoll.jail.supervisor import client
from atoll.jail.supervisor.spec import JailSpec, Limits
from atoll.jail.walls import syscalls, users
from atoll.policy import Isolation
from atoll.sandbox.availability import Availability

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.config import SandboxConfig

_TRUE = ("/bin/true",)
FAILURE_SECONDS = 5.0
"""How long a report of a failure is kept; a jail that was built once is believed for good."""
_cached: HostReport | None = None
_cached_until = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """The measurements of this host."""

    level: Isolation
    failure: str
    """Why the level is not JAILED; empty if it is."""
    landlock: int
    cgroup_version: int | None
    switches_user: bool

    def hint(self) -> str:
        """Return what to do for more, and what to type to be content with what there is."""
        text = host_facts.read().hint()
        if self.level < Isolation.CONFINED:
            return text
        without = {"disk_bytes": "--disk"}
        if self.cgroup_version is None:
            without["max_processes"] = "--processes"
        policy = ", ".join(f"'{name}': None" for name in without)
        options = " ".join(f"{option} none" for option in without.values())
        return (
            f"{text} Or be content with less: --min-isolation confined {options} "
            f"(min_isolation='confined', policy={{{policy}}})."
        )


async def host() -> HostReport:
    """Return the report on this host; a failure, which may have passed, is examined again."""
    global _cached, _cached_until  # noqa: PLW0603 - one host, one report
    if _cached is None or time.monotonic() > _cached_until:
        _cached = await _examine()
        _cached_until = time.monotonic() + FAILURE_SECONDS if _cached.failure else math.inf
    return _cached


async def level_for(backend: str, config: SandboxConfig) -> Isolation:
    """The level a sandbox will have; fails closed where the caller asked for more."""
    report = await host()
    least = Isolation.JAILED if config.min_isolation is None else config.min_isolation
    if report.level < Isolation.CONFINED:
        raise BackendUnavailableError(backend, report.failure, report.hint())
    if report.level < least and not report.failure:
        reason = f"{least} was asked for, and it offers {report.level}"
        raise IsolationError(backend, reason, f"Use min_isolation='{least}' with backend='auto'.")
    if report.level < least:
        have = str(report.level)
        reason = f"{least} was asked for and only {have} can be had ({report.failure})"
        raise IsolationError(backend, reason, report.hint())
    if report.level == Isolation.CONFINED and config.policy.disk_bytes is not None:
        hint = "nothing counts it; pass ExecutionPolicy(disk_bytes=None) (--disk none)"
        raise LimitUnsupportedError(backend, "disk_bytes", hint)
    return report.level


async def require_counters(backend: str, config: SandboxConfig, level: Isolation) -> None:
    """Raise LimitUnsupportedError for a limit that only a control group could hold here."""
    if (await host()).cgroup_version is not None:
        return
    if level >= Isolation.JAILED and config.policy.cpu_seconds is not None:
        hint = "without control groups, nothing counts processes that have ended; limit the time"
        raise LimitUnsupportedError(backend, "cpu_seconds", hint)
    if level == Isolation.CONFINED and config.policy.max_processes is not None:
        hint = (
            "without control groups, nothing counts threads; "
            "pass ExecutionPolicy(max_processes=None) (--processes none)"
        )
        raise LimitUnsupportedError(backend, "max_processes", hint)


async def availability(resolve: Callable[[], Any]) -> Availability:
    """What `atoll doctor` shows of a backend that runs in a jail."""
    try:
        python = await asyncio.to_thread(resolve)
    except BackendUnavailableError as exc:
        return Availability(usable=False, reason=exc.reason, hint=exc.hint)
    report = await host()
    if report.level < Isolation.CONFINED:
        return Availability(usable=False, reason=report.failure, hint=report.hint())
    jailed, facts = report.level >= Isolation.JAILED, host_facts.read()
    return Availability(
        usable=True,
        isolation=report.level,
        reason=report.failure,
        hint="" if jailed else report.hint(),
        limits=_limits(report),
        details={
            "python": f"{python.path} ({'.'.join(map(str, python.version))})",
            "guest's user": "a fresh one for each sandbox" if report.switches_user else "yours",
            "landlock": f"ABI {report.landlock}" if report.landlock else "not in this kernel",
            "cgroups": f"version {report.cgroup_version}"
            if report.cgroup_version
            else "not usable",
            **({"container": facts.words} if facts.container else {}),
        },
    )


def _limits(report: HostReport) -> dict[str, str]:
    jailed, group = report.level >= Isolation.JAILED, report.cgroup_version
    counted = f"cgroup v{group}" if group else "the supervisor's meter"
    processes = (
        f"RLIMIT_NPROC{f', cgroup v{group}' if group else ''}" if jailed else "no new process"
    )
    return {
        "time": "interrupt, then kill",
        "memory": f"RLIMIT_DATA, {counted}",
        "processes": processes if jailed or group else f"{processes}; threads not enforced",
        "cpu": counted if group or not jailed else "not enforced",
        "disk": "size of a tmpfs" if jailed else "not enforced",
        "file size": "RLIMIT_FSIZE",
        "output": "cut by the host",
    }


async def _examine() -> HostReport:
    failure, groups = await _try(jailed=True)
    level = Isolation.JAILED
    if failure:
        unable, groups = await _try(jailed=False)
        level = Isolation.NONE if unable else Isolation.CONFINED
    return HostReport(
        level=level,
        failure=failure,
        landlock=syscalls.landlock_version(),
        cgroup_version=groups,
        switches_user=users.may_switch(),
    )


async def _try(*, jailed: bool) -> tuple[str, int | None]:
    """Build a jail around a program that does nothing; why it failed, or nothing.

    Also the version of the control group that it was really in.
    """
    if not syscalls.supported():
        return f"the system calls of {syscalls.ARCH} are not known", None
    calls = kernel_calls.ALWAYS + kernel_calls.WALLS + (kernel_calls.JAIL if jailed else ())
    if lacking := kernel_calls.missing(calls):
        return kernel_calls.in_words(lacking), None
    limits = Limits(memory=None, processes=None, disk=1 << 20, file_size=None, open_files=256)
    spec = JailSpec(jailed=jailed, argv=_TRUE, env={}, binds=(), workspace=None, limits=limits)
    null = os.open(os.devnull, os.O_RDWR)
    try:
        lease = client.request(spec, [null] * 4)
        try:
            report = await asyncio.shield(lease.ended)
        finally:  # also if whoever asked is cancelled meanwhile
            await lease.close()
    except SandboxError as exc:
        return str(exc), None
    finally:
        os.close(null)
    failure = "" if report.exit == 0 else f"a jailed /bin/true ended with {report}"
    return failure, lease.started.result()["cgroup"]
