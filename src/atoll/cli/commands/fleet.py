"""`atoll fleet`: start a machine of a fleet, show the fleet, drain a node, stop this machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from atoll.cli.commands.run import as_json
from atoll.config import SandboxConfig, expand_home, fleet_address, fleet_socket
from atoll.daemon import lifecycle as daemons
from atoll.daemon.paths import DaemonPaths
from atoll.errors import ConfigError, FleetError
from atoll.fleet import machine
from atoll.fleet.client import Fleet
from atoll.fleet.machine import Machine
from atoll.fleet.settings import FleetSettings, unmark_prefix
from atoll.fleet.store import Store

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from atoll.fleet.client import ItemResult

REDRAW_SECONDS = 0.2
FAILED = 1
READY = "ready"
STOP_SECONDS = 30.0
NOT_RUNNING = 1


def command(args: Namespace) -> int:
    """Run the subcommand; return the exit code."""
    actions = {"start": start, "status": status, "drain": drain, "stop": stop, "map": map_items}
    return actions[args.action](args)


def start(args: Namespace) -> int:
    """Start the head, or a node with --join."""
    if args.join and (args.store or args.adopt or args.no_sessions):
        raise ConfigError("--store, --adopt and --no-sessions are for the head: leave out --join")
    if args.foreground:
        return _serve(args)
    log = fleet_socket(args.join or f"{args.bind}:{args.port}").with_suffix(".machine.log")
    log.parent.mkdir(mode=0o700, exist_ok=True)
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "atoll.cli.main", *sys.argv[1:], "--foreground"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=file,
            start_new_session=True,
        )
    assert process.stdout is not None
    with process.stdout:
        line = process.stdout.readline().decode()
    if READY not in line:
        code = process.wait() or 1
        print(log.read_text(errors="replace").strip(), file=sys.stderr)
        return code
    print(line.strip(), file=sys.stderr)
    process.returncode = 0  # it is not ours to wait for
    return 0


def _serve(args: Namespace) -> int:
    head = _machine(args)
    settings = None if args.join else _settings(args)
    if settings is not None:
        asyncio.run(machine.claim_store(settings, adopt=args.adopt))
    mark = _pid_file(head.address, args.name)
    with machine.running(head, settings), _written(mark):
        print(f"atoll: {READY}: the fleet's head is {head.address}", flush=True)
        machine.sleep_until_stopped()
    if settings is not None:
        asyncio.run(unmark_prefix(Store(settings.store), settings))
    return 0


def status(args: Namespace) -> int:
    """Print the state of the fleet; return 0 if it answers and 1 if not."""
    address = fleet_address(args.address)
    try:
        facts = asyncio.run(_facts(address))
    except FleetError as exc:
        if args.json:
            print(json.dumps({"running": False, "address": address, "reason": str(exc)}))
        else:
            print(f"atoll: {exc}", file=sys.stderr)
        return NOT_RUNNING
    print(json.dumps({"running": True, "address": address, **facts}) if args.json else show(facts))
    return 0


def drain(args: Namespace) -> int:
    """Move the sessions of a node elsewhere."""

    async def work() -> dict[str, Any]:
        async with Fleet.connect(fleet_address(args.address)) as fleet:
            return await fleet.drain(args.node, draining=not args.undo)

    moved = asyncio.run(work())
    if args.undo:
        print(f"the node {args.node} takes sessions again")
    else:
        print(f"the node {args.node} takes no more sessions; {moved['moved']} were moved")
    return 0


def stop(args: Namespace) -> int:
    """End the machines of the fleet that were started here."""
    address = fleet_address(args.address)
    pid_files = sorted(fleet_socket(address).parent.glob(f"{_stem(address)}*.pid"))
    daemons.stop(DaemonPaths(fleet_socket(address)))  # the driver: sessions commit what they have
    for path in pid_files:
        _end(path)
    print(f"{len(pid_files)} machines of the fleet at {address} have stopped here")
    return 0


def show(facts: dict[str, Any]) -> str:
    """Return the status as text: a line for the fleet, and one for each node."""
    head = f"fleet {facts['fleet']}, store {facts['store']}, {len(facts['nodes'])} nodes"
    lines = [head]
    lines += [f"{'node':<14}{'sessions':>10}{'running':>9}{'waiting':>9}{'save lag':>10}  parked"]
    for node in facts["nodes"]:
        parked = ", ".join(
            f"{tier} {facts_of_tier['parked']}" for tier, facts_of_tier in node["tiers"].items()
        )
        places = f"{node['sessions']}/{node['capacity']}"
        row = f"{node['name']:<14}{places:>10}{node['executing']:>9}{node['queued']:>9}"
        more = "  draining" if node["draining"] else ""
        lines.append(f"{row}{node['save_lag']:>8.1f} s  {parked}{more}")
    lines += [f"{name}: {why}" for name, why in facts["refused"].items()]
    if facts["reason"]:
        lines.append(facts["reason"])
    return "\n".join(lines)


async def _facts(address: str) -> dict[str, Any]:
    async with Fleet.connect(address) as fleet:
        return await fleet.status()


def _machine(args: Namespace) -> Machine:
    sessions = not args.no_sessions
    return Machine(
        bind=args.bind, port=args.port, head=args.join, name=args.name, takes_sessions=sessions
    )


def _settings(args: Namespace) -> FleetSettings:
    store = args.store or str(expand_home("~/.local/share/atoll/fleet"))
    given = {"tier": args.tier, "capacity": args.capacity, "save_seconds": args.save_every}
    given["keep_seconds"] = args.keep_days and 86400.0 * args.keep_days
    return FleetSettings(
        store=store, **{name: value for name, value in given.items() if value is not None}
    )


def _stem(address: str) -> str:
    return f"{fleet_socket(address).stem}-machine"


def _pid_file(address: str, name: str | None) -> Path:
    place = fleet_socket(address)
    place.parent.mkdir(mode=0o700, exist_ok=True)
    return place.with_name(f"{_stem(address)}-{name or os.getpid()}.pid")


@contextlib.contextmanager
def _written(path: Path) -> Any:
    path.write_text(str(os.getpid()))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _end(path: Path) -> None:
    """Send SIGTERM to the process of a pid file, if it is one of ours, and wait for its end."""
    pid = int(path.read_text() or 0)
    with contextlib.suppress(OSError):
        if b"fleet" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + STOP_SECONDS
    while os.path.exists(f"/proc/{pid}") and path.exists() and time.monotonic() < end:
        time.sleep(0.05)
    path.unlink(missing_ok=True)


def map_items(args: Namespace) -> int:
    """Run it; return 0 if the code ran without an error for every item, and 1 if not."""
    code = _read(args.code)
    with contextlib.ExitStack() as stack:
        lines: Any = sys.stdin
        if args.items != "-":
            lines = stack.enter_context(_open(args.items, "r"))
        output = stack.enter_context(_open(args.output, "w")) if args.output else sys.stdout
        return asyncio.run(_run_items(args, code, list(_items(lines)), output))


async def _run_items(args: Namespace, code: str, items: list[Any], output: IO[str]) -> int:
    config = SandboxConfig(**({} if args.timeout is None else {"timeout_seconds": args.timeout}))
    bar, failed, attempts = Bar(len(items)), 0, 0
    async with Fleet.connect(fleet_address(args.address)) as fleet:
        each = fleet.each(
            code, items, config=config, concurrency=args.concurrency, attempts=args.attempts
        )
        async for done in each:
            failed += done.result is None or done.result.error is not None
            attempts += done.attempts
            print(json.dumps(_row(done)), file=output, flush=True)
            bar.add(failed)
    bar.end()
    text = f"{len(items)} items, {failed} failed, {attempts - len(items)} tried again"
    print(f"atoll: {text}, in {bar.seconds:.1f} s", file=sys.stderr)
    return FAILED if failed else 0


class Bar:
    """How many are done, drawn on a terminal; silent elsewhere."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._began = total, 0, time.monotonic()
        self._drawn = self._began
        self._shown = sys.stderr.isatty()

    @property
    def seconds(self) -> float:
        """The time since it began."""
        return time.monotonic() - self._began

    def add(self, failed: int) -> None:
        """Count one more; draw it, but not too often."""
        self._done += 1
        now = time.monotonic()
        if self._shown and (now - self._drawn > REDRAW_SECONDS or self._done == self._total):
            self._drawn = now
            print(f"\r{self.text(failed)}\x1b[K", end="", file=sys.stderr, flush=True)

    def text(self, failed: int) -> str:
        """Return the line: a bar, counts, and the time that is left."""
        share = self._done / self._total
        left = self.seconds / share - self.seconds
        bar = ("#" * round(30 * share)).ljust(30, ".")
        more = f", {failed:,} failed" if failed else ""
        return f"[{bar}] {self._done:,} of {self._total:,}{more}, {left:.0f} s left"

    def end(self) -> None:
        """Remove the line."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _items(lines: IO[str]) -> Iterator[Any]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as exc:
                raise ConfigError(f"line {number} of the items is not JSON: {exc}") from None


def _row(item: ItemResult) -> dict[str, Any]:
    row = {"index": item.index, "item": item.item, "attempts": item.attempts}
    if item.result is None:
        return {**row, "result": None, "fault": str(item.error)}
    return {**row, "result": as_json(item.result), "fault": None}


def _read(path: str) -> str:
    with _open(path, "r") as file:
        return file.read()


def _open(path: str, mode: str) -> IO[str]:
    try:
        return open(path, mode, encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"{path} cannot be opened: {exc.strerror}") from None
