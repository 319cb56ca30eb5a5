"""`atoll daemon`: start, status, stop and logs of the process that keeps warm sandboxes."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.cli.terminal.standard_streams import say
from atoll.config import daemon_socket
from atoll.daemon import lifecycle, process
from atoll.daemon.paths import AlreadyRunningError, DaemonPaths
from atoll.errors import ConfigError
from atoll.extras import pip_command
from atoll.hosting.limits import DaemonLimits
from atoll.hosting.pool import PoolSettings

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

NOT_RUNNING = 1
PACKAGES = {"sklearn": "scikit-learn"}
"""Names on PyPI of modules that are imported by another name."""


def command(args: Namespace) -> int:
    """Run the subcommand; return the exit code."""
    if args.socket == "":
        raise ConfigError("--socket must be a path, got ''")
    paths = DaemonPaths(Path(args.socket).absolute() if args.socket else daemon_socket())
    actions = {"start": start, "status": status, "stop": stop, "logs": logs}
    return actions[args.action](args, paths)


def start(args: Namespace, paths: DaemonPaths) -> int:
    """Start the daemon unless it runs already; say which libraries its sessions lack."""
    limits = limits_from(args)
    if args.foreground:
        asyncio.run(_serve(args, paths, limits))
        return 0
    paths.prepare()
    try:
        pid = lifecycle.start(paths, limits, _waiting_said(), args.preload, args.tier)
    except AlreadyRunningError:
        return _runs_already(args, paths)
    say(f"the daemon runs with pid {pid} and listens at {paths.socket}")
    for line in missing_libraries((lifecycle.status(paths) or {}).get("pool", {})):
        say(line)
    return 0


def missing_libraries(pool: dict[str, Any]) -> list[str]:
    """Return lines that say which libraries of a tier are missing, and what to type."""
    lines = []
    for tier, facts in pool.items():
        failures = _failures(facts["missing"])
        absent = [name for name, why in failures.items() if "ModuleNotFoundError" in why]
        broken = [f"{name} ({why})" for name, why in failures.items() if name not in absent]
        if absent:
            lines.append(f"tier {tier}: not installed: {', '.join(absent)}. {install_hint(absent)}")
        if broken:
            lines.append(f"tier {tier}: cannot be imported: {'; '.join(broken)}")
    return lines


def install_hint(modules: list[str]) -> str:
    """Return what to type to install libraries, given by the names they are imported by."""
    packages = sorted({PACKAGES.get(name, name) for name in modules})
    return f"Type: {pip_command(*packages)}, and restart"


def _failures(missing: list[str]) -> dict[str, str]:
    """Return why each library failed to load, by its top-level name; the first reason counts."""
    reasons: dict[str, str] = {}
    for text in missing:
        module, _, why = text.partition(": ")
        reasons.setdefault(module.partition(".")[0], why)
    return reasons


async def _serve(args: Namespace, paths: DaemonPaths, limits: DaemonLimits) -> None:
    def ready() -> None:
        say(f"listening at {paths.socket}")

    await process.serve(paths, limits, ready, PoolSettings.with_more(args.preload, tier=args.tier))


def status(args: Namespace, paths: DaemonPaths) -> int:
    """Print what the daemon reports; return 0 if it runs and 1 if not."""
    facts = lifecycle.status(paths)
    if args.json:
        print(
            json.dumps({"running": facts is not None, "socket": str(paths.socket), **(facts or {})})
        )
    elif facts is None:
        print(f"no daemon runs at {paths.socket}. Type: atoll daemon start")
    else:
        print(describe(facts, paths))
    return 0 if facts else NOT_RUNNING


def stop(_args: Namespace, paths: DaemonPaths) -> int:
    """Stop the daemon and print how many sessions ended with it."""
    facts = lifecycle.stop(paths)
    if facts is None:
        print(f"no daemon runs at {paths.socket}")
    else:
        print(
            f"the daemon (pid {facts['pid']}) has stopped, and {facts['sessions']} sessions with it"
        )
    return 0


def logs(args: Namespace, paths: DaemonPaths) -> int:
    """Print the last lines of the log, and new ones with -f."""
    if not paths.log.exists():
        raise ConfigError(f"there is no log {paths.log}: no daemon has run there")
    for line in lifecycle.log_lines(paths, args.lines, follow=args.follow):
        print(line, end="", flush=True)
    return 0


def limits_from(args: Namespace) -> DaemonLimits:
    """Return the daemon's limits: what the options say, and the defaults."""
    return DaemonLimits(**_given(args))


def describe(facts: dict[str, Any], paths: DaemonPaths) -> str:
    """Return the status as text."""
    level = facts["isolation"] or "no sandbox can be opened:"
    rows = {
        "pid": facts["pid"],
        "socket": paths.socket,
        "uptime": f"{facts['uptime_seconds']:.0f} s",
        "isolation": f"{level} {facts['reason']}".strip(),
        "connections": facts["connections"],
        "sessions": f"{facts['sessions']} ({facts['live']} in memory)",
        "executions": f"{facts['executions']} "
        f"({facts['executing']} running, {facts['queued']} waiting)",
        **_describe_cold(facts.get("cold_starts", {})),
        **{f"tier {name}": _describe_tier(tier) for name, tier in facts["pool"].items()},
    }
    return "\n".join(f"{name:<13}{text}" for name, text in rows.items())


def _describe_tier(tier: dict[str, Any]) -> str:
    if tier["warm_seconds"] is None:
        return "not warm yet"
    missing = ", ".join(_failures(tier["missing"]))
    text = f"warm after {tier['warm_seconds']:.1f} s, {tier['parked']} guests ready"
    return f"{text}; missing: {missing}" if missing else text


def _describe_cold(reasons: dict[str, int]) -> dict[str, str]:
    """Return a row for sessions that were not served warm, and why; none if all were."""
    if not reasons:
        return {}
    return {"cold starts": "; ".join(f"{count}: {why}" for why, count in reasons.items())}


def _given(args: Namespace) -> dict[str, Any]:
    options = {
        "idle_seconds": args.idle_timeout,
        "max_sessions": args.max_sessions,
        "max_live": args.max_live,
        "max_running": args.max_running,
        "max_queue": args.max_queue,
        "max_memory_bytes": args.max_memory,
    }
    return {name: value for name, value in options.items() if value is not None}


def _runs_already(args: Namespace, paths: DaemonPaths) -> int:
    """Return 0, or 1 if options were given that the running daemon may not have."""
    if _given(args) or args.preload or args.tier:
        say(f"a daemon runs already at {paths.socket}: stop it to start it with other options")
        return 1
    say(f"a daemon runs already at {paths.socket}")
    return 0


def _waiting_said() -> Callable[[str], None]:
    """Return a progress callback; a step that repeats is printed with the seconds so far."""
    begun, said = time.monotonic(), ""

    def tell(doing: str) -> None:
        nonlocal said
        say(f"{doing} ... {time.monotonic() - begun:.0f} s" if doing == said else f"{doing} ...")
        said = doing

    return tell
