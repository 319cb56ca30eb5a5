"""The options of `atoll mcp` and `atoll kernel`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.cli.argument_types import port
from atoll.cli.option_table import add_options, one_of

if TYPE_CHECKING:
    from atoll.cli.parser import Parser

_MCP = """
    --tier TIER                libraries imported ahead (default full)
    --http                     serve over HTTP instead of stdio
    --host ADDRESS =127.0.0.1  listen on this address (default 127.0.0.1)
    --port N =8438             listen on this port (default 8438; 0: any free one)
    --serve-as NAME ...        a name that clients may use for this server, such as a proxy's;
        repeatable
    --no-token                 accept every program on this machine, without a token
    --max-sessions N =16       sandboxes at once (default 16)
    --idle-seconds SECONDS =1800  end a sandbox that was unused for this long (default 1800)
    --model NAME               the model for the tool `ask` (default: $ATOLL_MODEL; if unset, no
        such tool)
"""


def add_mcp(mcp: Parser, tiers: tuple[str, ...]) -> None:
    """Add what `atoll mcp` has besides the options of a sandbox."""
    add_options(mcp, _MCP, port={"type": port}, tier=one_of(tiers))


def add_kernel(*actions: Parser) -> None:
    """Add the options of `atoll kernel install` and `remove`."""
    prefix = "--prefix DIR  install below this folder, such as a venv (default: for this user)"
    for action in actions:
        add_options(action, prefix)
