"""The command: `python -m bench [--quick] [--only NAME] [--json FILE]`."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from bench import table, warm
from bench.harness import measure
from bench.rows import ROWS, Scale

if TYPE_CHECKING:
    from bench.harness import Result
    from bench.rows import Row

FILES_OF_ROWS = (
    "start", "execute", "bridge", "context", "memory", "fresh", "packages", "cpu", "service",
    "clones", "states", "peers", "wasm", "pyodide", "gvisor", "files", "explore", "needle",
    "retrieval", "rlm", "tokens", "tools", "network", "ports", "started", "programs", "images",
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Measure the rows that were asked for and print them."""
    for name in FILES_OF_ROWS:
        import_module(f"bench.{name}")
    options = _parser().parse_args(arguments)
    scale = Scale(quick=options.quick)
    with contextlib.closing(warm):
        results = _measure_all(_choose(options.only), scale)
    print(table.as_text(results, scale))
    if options.json:
        options.json.write_text(json.dumps(table.as_json(results, scale), indent=1) + "\n")
    return int(any(result.failed for result in results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Atoll beside what one would use instead. Medians; ours and theirs take turns.",
        epilog=f"rows: {', '.join(ROWS)}",
    )
    parser.add_argument("--quick", action="store_true", help="few rounds and a small context")
    parser.add_argument(
        "--only", metavar="NAME", action="append", help="rows whose name starts so; may repeat"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the numbers there too")
    return parser


def _choose(wanted: list[str] | None) -> list[Row]:
    chosen = [row for row in ROWS.values() if not wanted or row.name.startswith(tuple(wanted))]
    if not chosen:
        sys.exit(f"no row of that name; there are: {', '.join(ROWS)}")
    return chosen


def _measure_all(rows: list[Row], scale: Scale) -> list[Result]:
    results = []
    for number, row in enumerate(rows, 1):
        place = f"[{number}/{len(rows)}] {row.name}"
        results.append(measure(row, scale, functools.partial(_show, place)))
    _clear()
    return results


def _show(place: str, done: int, rounds: int) -> None:
    """One line that is written over where somebody looks; one line a row where nobody does."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{place} {done}/{rounds}", end="", file=sys.stderr, flush=True)
    elif done == 0:
        print(f"{place}: {rounds} rounds", file=sys.stderr, flush=True)


def _clear() -> None:
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
