"""The options of `atoll daemon`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.cli.argument_types import count, seconds, size

if TYPE_CHECKING:
    from atoll.cli.parser import Parser


def add_daemon(
    start: Parser, status: Parser, stop: Parser, logs: Parser, tiers: tuple[str, ...]
) -> None:
    """Add the options of the actions of `atoll daemon`."""
    for action in (start, status, stop, logs):
        action.add_argument("--socket", metavar="PATH", help="the daemon's socket")
    start.add_argument("--foreground", action="store_true", help="serve here until Ctrl-C")
    add_preload(start)
    _add_limits(start, tiers)
    status.add_argument("--json", action="store_true", help="print one JSON object")
    logs.add_argument(
        "-f", dest="follow", action="store_true", help="keep printing as lines are written"
    )
    logs.add_argument(
        "-n",
        dest="lines",
        metavar="N",
        type=count,
        default=20,
        help="number of lines (default 20)",
    )


def add_preload(command: Parser) -> None:
    """Add the imports of warm interpreters, for every command that keeps some."""
    command.add_argument(
        "--preload",
        metavar="IMPORT",
        action="append",
        default=[],
        help="one more import for warm interpreters, such as 'import polars as pl'; repeatable",
    )


def _add_limits(start: Parser, tiers: tuple[str, ...]) -> None:
    start.add_argument(
        "--tier",
        choices=tiers,
        help="libraries that sessions find imported: bare (standard library), numeric (numpy, "
        "pandas), full (also scipy, scikit-learn, statsmodels, matplotlib, seaborn); default full",
    )
    start.add_argument(
        "--idle-timeout",
        metavar="SECONDS",
        type=seconds,
        help="end a session that was idle for this long (default 3600)",
    )
    for name, metavar, kind, text in (
        ("--max-sessions", "N", count, "sessions in all (default 1024)"),
        ("--max-live", "N", count, "sessions kept in memory (default 128)"),
        ("--max-memory", "SIZE", size, "memory of all sessions together (default half of RAM)"),
        ("--max-running", "N", count, "cells that run at once (default 2 per core)"),
        ("--max-queue", "N", count, "cells that may wait for their turn (default 256)"),
    ):
        start.add_argument(name, metavar=metavar, type=kind, help=text)
