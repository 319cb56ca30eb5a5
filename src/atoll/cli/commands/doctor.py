"""`atoll doctor`: shows what each backend can do on this machine, as text or JSON."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import sys
import textwrap
from typing import TYPE_CHECKING, TypedDict

from atoll import __version__
from atoll.agent.trajectory.terminal_text import Colours
from atoll.backends import registry
from atoll.cli import settings
from atoll.cli.selfcheck import check
from atoll.cli.selfcheck.check import AttackReport
from atoll.cli.terminal.progress import width_of
from atoll.config import SandboxConfig, images_limit
from atoll.errors import BackendUnavailableError, ImageError
from atoll.policy import Isolation
from atoll.sandbox.availability import Availability
from atoll.text.amounts import size_text

if TYPE_CHECKING:
    from argparse import Namespace

    from atoll.cli.selfcheck.check import AttackResult

INDENT, WIDTH = 12, 100


def command(args: Namespace) -> int:
    """Show what works on this machine, and run the attacks if asked; return the exit code."""
    if args.fix:
        from atoll.cli.selfcheck import fix  # noqa: PLC0415 - seldom needed

        return fix.run()
    config = settings.backend_config(args, image=args.image)
    names = [config.backend] if args.backend else list(registry.names())
    backends = asyncio.run(examine(names, config))
    if not args.json:
        print(describe(backends, Colours.of(sys.stdout)))
        if sys.platform == "linux":
            print(f"\n{_images_line()}")
        print(f"\n{summary(backends, Colours.of(sys.stdout))}")
    least = config.min_isolation or (Isolation.NONE if args.backend else Isolation.CONFINED)
    usable = any(
        backend.usable and (backend.isolation or 0) >= least for backend in backends.values()
    )
    results = _attack(config, quiet=args.json) if args.attack and usable else []
    if args.json:
        print(json.dumps(as_json(backends, results), indent=2))
    return 0 if usable and all(result.held for result in results) else 1


def _images_line() -> str:
    """Return what the store of images holds, in one line."""
    try:
        held = _images()
    except ImageError as exc:
        return f"images      {exc.reason}. {exc.hint}"
    what = f"{held['count']} in {size_text(held['bytes'])}" if held["count"] else "none"
    return f"images      {what}, at most {size_text(held['max_bytes'])}, below {held['folder']}"


class HeldImages(TypedDict):
    """What the store of images holds."""

    folder: str
    count: int
    bytes: int
    max_bytes: int


def _images() -> HeldImages:
    """Return what the store of images holds; ImageError if it cannot be read."""
    from atoll.images import store  # noqa: PLC0415 - most have none

    return HeldImages(
        folder=str(store.root()),
        count=len(store.everything()),
        bytes=store.total_size(),
        max_bytes=images_limit(),
    )


async def examine(names: list[str], config: SandboxConfig) -> dict[str, Availability]:
    """Return the availability of each backend; `auto` stands for all of them."""
    wanted = list(registry.names()) if names == ["auto"] else names
    return {name: await _ask(name, config) for name in wanted}


def describe(backends: dict[str, Availability], colours: Colours) -> str:
    """Return the report as text."""
    parts = [f"atoll {__version__}, Python {sys.version.split()[0]}"]
    parts += [_backend(name, backend, colours) for name, backend in backends.items()]
    return "\n\n".join(parts)


def summary(backends: dict[str, Availability], colours: Colours) -> str:
    """Return the report in one line: "ready: native, jailed; daemon not running"."""
    ready = [
        f"{name}, {backend.isolation}" if backend.isolation is not None else name
        for name, backend in backends.items()
        if backend.usable
    ]
    others = [f"{name} {state(name, one)}" for name, one in backends.items() if not one.usable]
    if not ready:
        return colours.bad("not ready: ") + "; ".join(others)
    return colours.good("ready: ") + "; ".join([*ready, *others])


def show(name: str) -> bool:
    """Print the report of one backend; return whether it can be used."""
    backends = asyncio.run(examine([name], SandboxConfig(backend=name)))
    print(describe(backends, Colours.of(sys.stdout)))
    return backends[name].usable


def as_json(backends: dict[str, Availability], results: list[AttackResult]) -> dict[str, object]:
    """Return the report as JSON can hold it."""
    report: dict[str, object] = {
        "version": __version__,
        "backends": {name: _fields(name, backend) for name, backend in backends.items()},
    }
    with contextlib.suppress(ImageError):
        report["images"] = _images() if sys.platform == "linux" else None
    if results:
        report["attacks"] = [dataclasses.asdict(result) for result in results]
    return report


async def _ask(name: str, config: SandboxConfig) -> Availability:
    try:
        backend = registry.load(name)
    except BackendUnavailableError as exc:
        return Availability(usable=False, reason=exc.reason, hint=exc.hint)
    return await backend.availability(dataclasses.replace(config, backend=name))


def _backend(name: str, availability: Availability, colours: Colours) -> str:
    paint = {"usable": colours.good, "not usable": colours.bad}
    word = state(name, availability)
    painted = paint.get(word, colours.faint)(word)
    level = f", {availability.isolation}" if availability.isolation is not None else ""
    head, summary = f"{name}: {word}{level} - ", registry.BACKENDS[name].summary
    first, *more = textwrap.wrap(
        summary, _width(), initial_indent=" " * len(head), subsequent_indent="  "
    )
    lines = [f"{colours.strong(name)}: {painted}{level} - {first.lstrip()}", *more]
    lines += _row("because", availability.reason) + _row("to do", availability.hint)
    lines += _table("limits", availability.limits) + _table("details", availability.details)
    return "\n".join(lines)


def state(name: str, availability: Availability) -> str:
    """Return one of: usable, not running, not set up, not usable (something is broken)."""
    if availability.usable:
        return "usable"
    if not (registry.BACKENDS[name].optional and availability.hint):
        return "not usable"
    return "not running" if name == "daemon" else "not set up"


def _row(title: str, text: str) -> list[str]:
    """Wrap a long text in lines; a command to type is never broken at a hyphen."""
    return _wrapped(f"  {title:<{INDENT - 2}}", text)


def _table(title: str, rows: dict[str, str]) -> list[str]:
    width = max(map(len, rows), default=0) + 2
    heads = (
        f"  {title if number == 0 else '':<{INDENT - 2}}{name:<{width}}"
        for number, name in enumerate(rows)
    )
    pairs = zip(heads, rows.values(), strict=True)
    return [line for head, text in pairs for line in _wrapped(head, text)]


def _wrapped(head: str, text: str) -> list[str]:
    """Return the text behind its head, in lines that fit the terminal; long words stay whole."""
    return textwrap.wrap(
        text,
        _width(),
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_on_hyphens=False,
        break_long_words=False,
    )


def _width() -> int:
    return min(WIDTH, width_of(sys.stdout))


def _fields(name: str, availability: Availability) -> dict[str, object]:
    level = None if availability.isolation is None else str(availability.isolation)
    return {
        "summary": registry.BACKENDS[name].summary,
        "state": state(name, availability),
        **dataclasses.asdict(availability),
        "isolation": level,
    }


def _attack(config: SandboxConfig, *, quiet: bool) -> list[AttackResult]:
    report = AttackReport(sys.stdout, Colours.of(sys.stdout), quiet=quiet)
    return asyncio.run(check.run(config, check.load(), report))
