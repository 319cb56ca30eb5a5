"""What this host allows, found out by building a jail; if it does not, why, and what to type."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.errors import (
    BackendUnavailableError,
    IsolationError,
    LimitUnsupportedError,
    SandboxError,
)
from atoll.jail.supervisor import client
from atoll.jail.supervisor.spec import JailSpec, Limits
from atoll.jail.walls import syscalls, users
from atoll.policy import Isolation
from atoll.sandbox.availability import Availability

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.config import SandboxConfig

_SYSCTLS = (
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ("user.max_user_namespaces", "0", "10000"),
)
"""Settings that forbid user namespaces: name, the value that forbids, the value to set."""
_ULIMITS = (
    (resource.RLIMIT_NOFILE, 64, "-n 1024"),
    (resource.RLIMIT_FSIZE, 1 << 20, "-f unlimited"),
)
"""What a jail needs of the limits of the process that asks for it: kind, least, how to set it."""
_FILTERED = {
    "podman": "--security-opt seccomp=unconfined",
    "docker": "--security-opt seccomp=unconfined --security-opt apparmor=unconfined",
    "kubernetes": "securityContext.seccompProfile.type: Unconfined",
}
_MASKED = {
    "podman": "--security-opt unmask=ALL",
    "docker": "--security-opt systempaths=unconfined",
    "kubernetes": "securityContext.procMount: Unmasked",
}
_OTHER = "podman"
"""Whose options are shown if it is not known who made the container."""
_TRUE = ("/bin/true",)
FAILURE_SECONDS = 5.0
"""How long a report of a failure is kept; a jail that was built once is believed for good."""
_cached: HostReport | None = None
_cached_until = math.inf


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What may stand in the way of namespaces and mounts."""

    container: str
    """Who made the container around this process; empty outside of one."""
    filtered: bool
    """Whether a seccomp filter is active for this process."""
    masked: bool
    """Whether parts of /proc are covered, so that no new /proc can be mounted."""
    sysctls: tuple[str, ...]
    """Kernel settings that forbid user namespaces, as they have to be set."""
    ulimits: tuple[str, ...] = ()
    """Limits of this process that are too low for a jail, as they have to be set."""

    @property
    def words(self) -> str:
        """The container and its walls, for a report; empty outside of one."""
        if not self.container:
            return ""
        walls = ["a seccomp filter"] * self.filtered + ["a masked /proc"] * self.masked
        return f"{self.container}, with {' and '.join(walls)}" if walls else self.container

    def hint(self) -> str:
        """Return what to do so that jails can be built."""
        todo = [f"set {', '.join(self.sysctls)} with sysctl on the host"] * bool(self.sysctls)
        if self.container and (options := self._options()):
            how = "put into the pod" if self.container == "kubernetes" else "start it with"
            todo.insert(0, f"this is a container: {how} {options}")
        elif self.filtered:
            settings = "SystemCallFilter, RestrictNamespaces and their like"
            where = "a seccomp filter is active for this process"
            todo.insert(0, f"{where}: take {settings} out of its systemd unit")
        if self.ulimits:
            todo = [f"this process may use too little: type {' && '.join(self.ulimits)}"]
        if not todo:
            names = ", ".join(f"{name}={allows}" for name, _, allows in _SYSCTLS)
            todo.append(
                f"allow user namespaces ({names}; in a container: a seccomp profile that "
                "allows unshare, mount and sethostname, and an unmasked /proc)"
            )
        text = "; ".join(todo)
        return (
            f"{text[0].upper()}{text[1:]}. Or pass min_isolation='confined' "
            "(--min-isolation confined)."
        )

    def _options(self) -> str:
        known = self.container if self.container in _MASKED else _OTHER
        options = [_FILTERED[known]] * self.filtered + [_MASKED[known]] * self.masked
        return (", " if known == "kubernetes" else " ").join(options)


def read(root: Path = Path("/")) -> HostFacts:
    """Return the facts of this process and host."""
    mounts = _text(root / "proc/self/mountinfo").splitlines()
    points = [line.split()[4] for line in mounts if len(line.split()) > 4]
    return HostFacts(
        container=_container(root),
        filtered="\nSeccomp:\t2\n" in _text(root / "proc/self/status"),
        masked=any(point.startswith("/proc/") for point in points),
        sysctls=tuple(
            f"{name}={allows}"
            for name, forbids, allows in _SYSCTLS
            if _text(root / "proc/sys" / name.replace(".", "/")).strip() == forbids
        ),
        ulimits=tuple(
            f"ulimit {option}"
            for kind, least, option in _ULIMITS
            if -1 < resource.getrlimit(kind)[0] < least
        ),
    )


def _container(root: Path) -> str:
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "kubernetes"
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    return os.environ.get("container", "")  # noqa: SIM112 - as systemd and others spell it


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text("utf-8", "replace")
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """What was found on this host."""

    level: Isolation
    failure: str
    """Why the level is not JAILED; empty if it is."""
    landlock: int
    cgroup_version: int | None
    switches_user: bool


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
        raise BackendUnavailableError(backend, report.failure, read().hint())
    if report.level < least and not report.failure:
        reason = f"{least} was asked for, and it offers {report.level}"
        raise IsolationError(backend, reason, f"Use min_isolation='{least}' with backend='auto'.")
    if report.level < least:
        have = str(report.level)
        reason = f"{least} was asked for and only {have} can be had ({report.failure})"
        raise IsolationError(backend, reason, read().hint())
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
        return Availability(usable=False, reason=report.failure, hint=read().hint())
    jailed, facts = report.level >= Isolation.JAILED, read()
    return Availability(
        usable=True,
        isolation=report.level,
        reason=report.failure,
        hint="" if jailed else facts.hint(),
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
