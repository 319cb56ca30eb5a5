"""The options of `atoll fleet`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from atoll.cli.argument_types import count, port, seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.cli.parser import Parser

_ADDRESS = "HOST:PORT of the fleet's head (default: $ATOLL_FLEET or 127.0.0.1:6379)"


def actions(tiers: tuple[str, ...]) -> dict[str, tuple[str, Callable[[Parser], None]]]:
    """Return each action of `atoll fleet`: what it does, and what adds its options."""
    return {
        "start": ("start a fleet, or join one", partial(add_start, tiers=tiers)),
        "status": ("show nodes, sessions and load", add_status),
        "map": ("run a program once for each item", add_map),
        "drain": ("move a node's sessions elsewhere", add_drain),
        "stop": ("stop what was started on this machine", add_stop),
    }


def add_start(start: Parser, tiers: tuple[str, ...]) -> None:
    """Add the options of `atoll fleet start`."""
    start.add_argument("--join", metavar="HOST:PORT", help="join the fleet with this head")
    start.add_argument(
        "--store",
        metavar="URL",
        help="where sessions are saved: a folder that all machines share, or s3://bucket/prefix; "
        "for the head (default: ~/.local/share/atoll/fleet)",
    )
    start.add_argument(
        "--adopt", action="store_true", help="take over the store of a fleet that has ended"
    )
    start.add_argument(
        "--bind",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="listen on this address of a private network (default 127.0.0.1: only this machine)",
    )
    start.add_argument(
        "--port", metavar="N", type=port, default=6379, help="the head's port (6379)"
    )
    start.add_argument("--name", metavar="NAME", help="the name of this node")
    start.add_argument(
        "--no-sessions", action="store_true", help="give the head itself no sessions"
    )
    start.add_argument("--tier", choices=tiers, help="libraries that sessions find imported")
    start.add_argument("--capacity", metavar="N", type=count, help="sessions on one node (256)")
    start.add_argument(
        "--save-every", metavar="SECONDS", type=seconds, help="how often `periodic` saves (10)"
    )
    start.add_argument(
        "--keep-days", metavar="N", type=count, help="days to keep a session that is on no node (7)"
    )
    start.add_argument("--foreground", action="store_true", help="run until Ctrl-C")


def add_status(status: Parser) -> None:
    """Add the options of `atoll fleet status`."""
    status.add_argument("--address", metavar="HOST:PORT", help=_ADDRESS)
    status.add_argument("--json", action="store_true", help="print one JSON object")


def add_map(each: Parser) -> None:
    """Add the options of `atoll fleet map`."""
    each.add_argument("code", metavar="FILE", help="a Python program; the item is its `context`")
    each.add_argument(
        "items", metavar="ITEMS", help="a file with one JSON value per line, or - for stdin"
    )
    each.add_argument(
        "--output", metavar="FILE", help="write the results to this file (default: stdout)"
    )
    each.add_argument(
        "--concurrency", metavar="N", type=count, default=64, help="items at once (64)"
    )
    each.add_argument(
        "--attempts", metavar="N", type=count, default=3, help="tries if a node is lost (3)"
    )
    each.add_argument("--timeout", metavar="SECONDS", type=seconds, help="time limit of an item")
    each.add_argument("--address", metavar="HOST:PORT", help=_ADDRESS)


def add_drain(drain: Parser) -> None:
    """Add the options of `atoll fleet drain`."""
    drain.add_argument("node", metavar="NODE", help="the node's name")
    drain.add_argument("--address", metavar="HOST:PORT", help=_ADDRESS)
    drain.add_argument("--undo", action="store_true", help="let the node take sessions again")


def add_stop(stop: Parser) -> None:
    """Add the options of `atoll fleet stop`."""
    stop.add_argument("--address", metavar="HOST:PORT", help=_ADDRESS)
