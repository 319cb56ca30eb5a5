"""The options of `atoll mcp` and `atoll kernel`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.cli.argument_types import count, port, seconds

if TYPE_CHECKING:
    from atoll.cli.parser import Parser


def add_mcp(mcp: Parser, tiers: tuple[str, ...]) -> None:
    """Add what `atoll mcp` has besides the options of a sandbox."""
    mcp.add_argument("--tier", choices=tiers, help="libraries imported ahead (default full)")
    mcp.add_argument("--http", action="store_true", help="serve over HTTP instead of stdio")
    mcp.add_argument(
        "--host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="listen on this address (default 127.0.0.1)",
    )
    mcp.add_argument(
        "--port",
        metavar="N",
        type=port,
        default=8438,
        help="listen on this port (default 8438; 0: any free one)",
    )
    mcp.add_argument(
        "--serve-as",
        metavar="NAME",
        action="append",
        default=[],
        help="a name that clients may use for this server, such as a proxy's; repeatable",
    )
    mcp.add_argument(
        "--no-token",
        action="store_true",
        help="accept every program on this machine, without a token",
    )
    mcp.add_argument(
        "--max-sessions",
        metavar="N",
        type=count,
        default=16,
        help="sandboxes at once (default 16)",
    )
    mcp.add_argument(
        "--idle-seconds",
        metavar="SECONDS",
        type=seconds,
        default=1800.0,
        help="end a sandbox that was unused for this long (default 1800)",
    )
    mcp.add_argument(
        "--model",
        metavar="NAME",
        help="the model for the tool `ask` (default: $ATOLL_MODEL; if unset, no such tool)",
    )


def add_kernel(*actions: Parser) -> None:
    """Add the options of `atoll kernel install` and `remove`."""
    for action in actions:
        action.add_argument(
            "--prefix",
            metavar="DIR",
            help="install below this folder, such as a venv (default: for this user)",
        )
