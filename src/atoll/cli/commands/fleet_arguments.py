"""The options of `atoll fleet`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from atoll.cli.argument_types import port
from atoll.cli.option_table import add_options, one_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.cli.parser import Parser

_ADDRESS = (
    "--address HOST:PORT  HOST:PORT of the fleet's head (default: $ATOLL_FLEET or 127.0.0.1:6379)"
)
_START = """
    --join HOST:PORT           join the fleet with this head
    --store URL                where sessions are saved: a folder that all machines share, or
        s3://bucket/prefix; for the head (default: ~/.local/share/atoll/fleet)
    --adopt                    take over the store of a fleet that has ended
    --bind ADDRESS =127.0.0.1  listen on this address of a private network (default 127.0.0.1: only
        this machine)
    --port N =6379             the head's port (6379)
    --name NAME                the name of this node
    --no-sessions              give the head itself no sessions
    --tier TIER                libraries that sessions find imported
    --capacity N               sessions on one node (256)
    --save-every SECONDS       how often `periodic` saves (10)
    --keep-days N              days to keep a session that is on no node (7)
    --foreground               run until Ctrl-C
"""
_MAP = f"""
    code=FILE          a Python program; the item is its `context`
    ITEMS              a file with one JSON value per line, or - for stdin
    --output FILE      write the results to this file (default: stdout)
    --concurrency N =64  items at once (64)
    --attempts N =3    tries if a node is lost (3)
    --timeout SECONDS  time limit of an item
    {_ADDRESS}
"""
_STATUS = f"{_ADDRESS}\n--json  print one JSON object"
_DRAIN = f"""
    NODE    the node's name
    {_ADDRESS}
    --undo  let the node take sessions again
"""


def actions(tiers: tuple[str, ...]) -> dict[str, tuple[str, Callable[[Parser], None]]]:
    """Return each action of `atoll fleet`: what it does, and what adds its options."""
    start = partial(add_options, table=_START, port={"type": port}, tier=one_of(tiers))
    return {
        "start": ("start a fleet, or join one", start),
        "status": ("show nodes, sessions and load", partial(add_options, table=_STATUS)),
        "map": ("run a program once for each item", partial(add_options, table=_MAP)),
        "drain": ("move a node's sessions elsewhere", partial(add_options, table=_DRAIN)),
        "stop": ("stop what was started on this machine", partial(add_options, table=_ADDRESS)),
    }
