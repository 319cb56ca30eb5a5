"""The actor of a node: all that Ray calls there.

Ray wraps each method of an actor's class in tracing of its own, also those that only the node calls
for every message. So `NodeHost` is not that class.
"""

from __future__ import annotations

from typing import Any

from atoll.fleet.garbage import collect_rarely
from atoll.fleet.node import NodeHost


class NodeActor:
    """Passes Ray's calls on to the node."""

    def __init__(self, name: str, settings: str, address: str) -> None:
        self._host = NodeHost(name, settings, address)

    async def start(self) -> dict[str, Any]:
        """Warm the node; return how to connect, and its facts."""
        door = await self._host.start()
        collect_rarely()
        return door

    async def drain(self, *, draining: bool) -> dict[str, Any]:
        """Take no new session, or take them again; return the node's facts."""
        return await self._host.drain(draining=draining)
