"""`atoll fleet map`: a program once for each line of a file, spread over a fleet."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from typing import IO, TYPE_CHECKING, Any

from atoll.cli.commands.run import as_json
from atoll.config import SandboxConfig, fleet_address
from atoll.errors import ConfigError
from atoll.fleet.client import Fleet

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from atoll.fleet.client import ItemResult

REDRAW_SECONDS = 0.2
FAILED = 1


def command(args: Namespace) -> int:
    """Run it; return 0 if the code ran without an error for every item, and 1 if not."""
    code = _read(args.code)
    with contextlib.ExitStack() as stack:
        lines: Any = sys.stdin
        if args.items != "-":
            lines = stack.enter_context(_open(args.items, "r"))
        output = stack.enter_context(_open(args.output, "w")) if args.output else sys.stdout
        return asyncio.run(_run(args, code, list(_items(lines)), output))


async def _run(args: Namespace, code: str, items: list[Any], output: IO[str]) -> int:
    config = SandboxConfig(**({} if args.timeout is None else {"timeout_seconds": args.timeout}))
    bar, failed, attempts = Bar(len(items)), 0, 0
    async with Fleet.connect(fleet_address(args.address)) as fleet:
        each = fleet.each(
            code, items, config=config, concurrency=args.concurrency, attempts=args.attempts
        )
        async for one in each:
            failed += one.result is None or one.result.error is not None
            attempts += one.attempts
            print(json.dumps(_row(one)), file=output, flush=True)
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


def _row(one: ItemResult) -> dict[str, Any]:
    row = {"index": one.index, "item": one.item, "attempts": one.attempts}
    if one.result is None:
        return {**row, "result": None, "fault": str(one.error)}
    return {**row, "result": as_json(one.result), "fault": None}


def _read(path: str) -> str:
    with _open(path, "r") as file:
        return file.read()


def _open(path: str, mode: str) -> IO[str]:
    try:
        return open(path, mode, encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"{path} cannot be opened: {exc.strerror}") from None
