"""The options of `atoll daemon`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.cli.option_table import add_options, one_of

if TYPE_CHECKING:
    from atoll.cli.parser import Parser

PRELOAD = (
    "--preload MODULE ...  one more module that warm interpreters import: its name, or an import "
    "statement such as 'import polars as pl'; repeatable"
)
"""The imports of warm interpreters, for every command that keeps some."""
_LIMITS = """
    --tier TIER       libraries that sessions find imported: bare (standard library), numeric
        (numpy, pandas), full (also scipy, scikit-learn, statsmodels, matplotlib, seaborn);
        default full
    --idle-timeout SECONDS  end a session that was idle for this long (default 3600)
    --max-sessions N  sessions in all (default 1024)
    --max-live N      sessions kept in memory (default 128)
    --max-memory SIZE  memory of all sessions together (default half of RAM)
    --max-running N   cells that run at once (default 2 per core)
    --max-queue N     cells that may wait for their turn (default 256)
"""
_LOGS = """
    -f        keep printing as lines are written
    -n N =20  number of lines (default 20)
"""


def add_daemon(
    start: Parser, status: Parser, stop: Parser, logs: Parser, tiers: tuple[str, ...]
) -> None:
    """Add the options of the actions of `atoll daemon`."""
    for action in (start, status, stop, logs):
        add_options(action, "--socket PATH  the daemon's socket")
    add_options(start, "--foreground  serve here until Ctrl-C")
    add_options(start, PRELOAD)
    add_options(start, _LIMITS, tier=one_of(tiers))
    add_options(status, "--json  print one JSON object")
    add_options(logs, _LOGS, f={"dest": "follow"}, n={"dest": "lines"})
