"""`atoll daemon`: start, status, stop, logs of the process that holds sandboxes for others."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.config import daemon_socket
from atoll.daemon import lifecycle, process
from atoll.daemon.limits import DaemonLimits
from atoll.daemon.paths import AlreadyRunningError, Place
from atoll.errors import ConfigError
from atoll.pool import PoolSettings

if TYPE_CHECKING:
    from argparse import Namespace

NOT_RUNNING = 1


def command(args: Namespace) -> int:
    """Do what was asked of the daemon; the exit code."""
    place = Place(Path(args.socket).absolute() if args.socket else daemon_socket())
    actions = {"start": start, "status": status, "stop": stop, "logs": logs}
    return actions[args.action](args, place)


def start(args: Namespace, place: Place) -> int:
    """Start one, unless it runs already."""
    limits = limits_from(args)
    if args.foreground:
        asyncio.run(_serve(args, place, limits))
        return 0
    place.prepare()
    try:
        pid = lifecycle.start(place, limits, lambda: _tell("starting ..."), args.preload, args.tier)
    except AlreadyRunningError:
        return _runs_already(args, place)
    _tell(f"the daemon runs with pid {pid}, listening at {place.socket}")
    return 0


async def _serve(args: Namespace, place: Place, limits: DaemonLimits) -> None:
    def ready() -> None:
        _tell(f"listening at {place.socket}")

    await process.serve(place, limits, ready, PoolSettings.with_more(args.preload, tier=args.tier))


def status(args: Namespace, place: Place) -> int:
    """Tell what the daemon says of itself."""
    facts = lifecycle.status(place)
    if args.json:
        print(
            json.dumps({"running": facts is not None, "socket": str(place.socket), **(facts or {})})
        )
    elif facts is None:
        print(f"no daemon runs at {place.socket}. Type: atoll daemon start")
    else:
        print(describe(facts, place))
    return 0 if facts else NOT_RUNNING


def stop(_args: Namespace, place: Place) -> int:
    """End the daemon and say what ended with it."""
    facts = lifecycle.stop(place)
    if facts is None:
        print(f"no daemon runs at {place.socket}")
    else:
        print(
            f"the daemon (pid {facts['pid']}) has ended, and {facts['sessions']} sessions with it"
        )
    return 0


def logs(args: Namespace, place: Place) -> int:
    """Print the end of the log."""
    if not place.log.exists():
        raise ConfigError(f"there is no log at {place.log}: no daemon has run there")
    for line in lifecycle.log_lines(place, args.lines, follow=args.follow):
        print(line, end="", flush=True)
    return 0


def limits_from(args: Namespace) -> DaemonLimits:
    """The daemon's bounds: the defaults, unless an option says otherwise."""
    return DaemonLimits(**_given(args))


def describe(facts: dict[str, Any], place: Place) -> str:
    """The status for people."""
    level = (facts["isolation"] or "none can be opened").lower()
    rows = {
        "pid": facts["pid"],
        "socket": place.socket,
        "uptime": f"{facts['uptime_seconds']:.0f} s",
        "isolation": f"{level} {facts['reason']}".strip(),
        "connections": facts["connections"],
        "sessions": f"{facts['sessions']} ({facts['live']} in memory)",
        "executions": f"{facts['executions']} ({facts['executing']} run, {facts['queued']} wait)",
        **{f"tier {name}": _describe_tier(tier) for name, tier in facts["pool"].items()},
    }
    return "\n".join(f"{name:<13}{text}" for name, text in rows.items())


def _describe_tier(tier: dict[str, Any]) -> str:
    if tier["warm_seconds"] is None:
        return "not warm yet"
    missing = ", ".join(text.partition(":")[0] for text in tier["missing"])
    text = f"warm after {tier['warm_seconds']:.1f} s, {tier['parked']} guests wait"
    return f"{text}; missing: {missing}" if missing else text


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


def _runs_already(args: Namespace, place: Place) -> int:
    """As wanted, unless other options were given than it may have been started with."""
    if _given(args) or args.preload or args.tier:
        _tell(f"a daemon runs already at {place.socket}: stop it to start it with other options")
        return 1
    _tell(f"a daemon runs already at {place.socket}")
    return 0


def _tell(text: str) -> None:
    print(f"atoll: {text}", file=sys.stderr, flush=True)
