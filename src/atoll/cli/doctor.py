"""`atoll doctor`: what each backend can do on this host, for people and as JSON."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import textwrap
from typing import TYPE_CHECKING, Any

from atoll import __version__
from atoll.availability import Availability
from atoll.backends import registry
from atoll.cli import attacks, selfcheck, settings
from atoll.cli.paint import Paint
from atoll.cli.scoreboard import Show
from atoll.errors import BackendUnavailableError
from atoll.policy import Isolation

if TYPE_CHECKING:
    from argparse import Namespace

    from atoll.cli.scoreboard import Verdict
    from atoll.config import REPLConfig

INDENT, WIDTH = 12, 100


def command(args: Namespace) -> int:
    """Tell what this host allows, and try it out if asked to; the exit code."""
    config = settings.backend_config(args)
    names = [config.backend] if args.backend else list(registry.names())
    backends = asyncio.run(examine(names, config))
    if not args.json:
        print(describe(backends, Paint.of(sys.stdout)))
    least = config.min_isolation or (Isolation.NONE if args.backend else Isolation.CONFINED)
    usable = any(one.usable and (one.isolation or 0) >= least for one in backends.values())
    verdicts = _attack(config, quiet=args.json) if args.attack and usable else []
    if args.json:
        print(json.dumps(as_json(backends, verdicts), indent=2))
    return 0 if usable and all(one.held for one in verdicts) else 1


async def examine(names: list[str], config: REPLConfig) -> dict[str, Availability]:
    """What each of the backends says of itself; `auto` stands for all of them."""
    wanted = list(registry.names()) if names == ["auto"] else names
    return {name: await _ask(name, config) for name in wanted}


def describe(backends: dict[str, Availability], paint: Paint) -> str:
    """The report for people."""
    parts = [f"atoll {__version__}, Python {sys.version.split()[0]}"]
    parts += [_backend(name, one, paint) for name, one in backends.items()]
    return "\n\n".join(parts)


def as_json(backends: dict[str, Availability], verdicts: list[Verdict]) -> dict[str, object]:
    """The report for programs."""
    report: dict[str, object] = {
        "version": __version__,
        "backends": {name: _fields(name, one) for name, one in backends.items()},
    }
    if verdicts:
        report["attacks"] = [dataclasses.asdict(one) for one in verdicts]
    return report


async def _ask(name: str, config: REPLConfig) -> Availability:
    try:
        backend = registry.load(name)
    except BackendUnavailableError as exc:
        return Availability(usable=False, reason=exc.reason, hint=exc.hint)
    return await backend.availability(dataclasses.replace(config, backend=name))


def _backend(name: str, one: Availability, paint: Paint) -> str:
    state = paint.good("usable") if one.usable else paint.bad("not usable")
    level = f", {one.isolation.name.lower()}" if one.isolation is not None else ""
    lines = [f"{paint.strong(name)}: {state}{level} - {registry.BACKENDS[name].summary}"]
    lines += _row("because", one.reason) + _row("do", one.hint)
    lines += _table("limits", one.limits) + _table("details", one.details)
    return "\n".join(lines)


def _row(title: str, text: str) -> list[str]:
    """A long text in lines; what is to be typed in it is never torn."""
    first, rest = f"  {title:<{INDENT - 2}}", " " * INDENT
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    )


def _table(title: str, rows: dict[str, str]) -> list[str]:
    width = max(map(len, rows), default=0) + 2
    return [
        f"  {title if number == 0 else '':<{INDENT - 2}}{name:<{width}}{text}"
        for number, (name, text) in enumerate(rows.items())
    ]


def _fields(name: str, one: Availability) -> dict[str, Any]:
    level = None if one.isolation is None else one.isolation.name.lower()
    return {
        "summary": registry.BACKENDS[name].summary,
        **dataclasses.asdict(one),
        "isolation": level,
    }


def _attack(config: REPLConfig, *, quiet: bool) -> list[Verdict]:
    show = Show(sys.stdout, Paint.of(sys.stdout), quiet=quiet)
    return asyncio.run(selfcheck.run(config, attacks.load(), show))
