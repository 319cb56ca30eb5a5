"""The report of this backend on this host, for `atoll doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.backends.pyodide import wheels
from atoll.backends.pyodide.distribution import PYTHON, VERSION
from atoll.policy import Isolation
from atoll.sandbox.availability import Availability

if TYPE_CHECKING:
    from atoll.backends.pyodide.deno import Deno
    from atoll.backends.pyodide.distribution import Distribution
    from atoll.jail.measure.probe import HostReport

HINT = "atoll doctor --backend native tells what the host would have to allow."
_SETUP = "on first use; now: atoll pyodide setup"


def describe(
    runner: Deno, pyodide: Distribution | None, host: HostReport, *, worker: bool
) -> Availability:
    """Return the report: usable if there are Deno and a supervisor."""
    if host.level < Isolation.CONFINED:
        return Availability(usable=False, reason=no_supervisor(host), hint=HINT)
    return Availability(
        usable=True,
        isolation=Isolation.VIRTUAL,
        limits=_limits(host, worker=worker),
        details={
            "deno": f"{runner.path} ({runner.version})",
            "pyodide": f"{VERSION} in {pyodide.folder}" if pyodide else f"fetched {_SETUP}",
            "python": ".".join(map(str, PYTHON)),
            "around deno": _walls(host),
            "wheels": ", ".join(path.name.partition("-")[0] for path in wheels.installed())
            or "none; atoll pyodide install NAME",
        },
    )


def no_supervisor(host: HostReport) -> str:
    """Return why Deno cannot be confined here."""
    return f"Deno cannot be kept in: {host.failure}"


def _walls(host: HostReport) -> str:
    if host.level >= Isolation.JAILED:
        return "a jail, as around a native guest"
    return f"Landlock, seccomp, rlimits; no jail ({host.failure})"


def _limits(host: HostReport, *, worker: bool) -> dict[str, str]:
    group = host.cgroup_version
    counted = f"cgroup v{group}" if group else "the supervisor's meter"
    return {
        "time": "interrupt, then kill" if worker else "kill",
        "memory": f"pages of wasm memory; {counted} around Deno",
        "processes": "there are none",
        "cpu": counted,
        "disk": f"files are in memory and counted; {counted} around Deno",
        "file size": "counted",
        "output": "cut by the host",
    }
