"""A node's end of its link to one driver: exchanges of batches of messages.

    driver ── exchange(number, messages) ──▶ node     waits until the node has something to say
    driver ◀── (number, messages, facts) ─── node     batches are numbered: they may overtake

An exchange is one call of an actor. The driver has one waiting at all times, and makes another one
to send. The node answers the oldest as soon as it has messages, and keeps MOST_WAITING of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any

from atoll.errors import SandboxLostError
from atoll.fleet.peer import Gathering

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.fleet.peer import Message, MessagePeer

MOST_WAITING = 2
FACTS_SECONDS = 0.25
"""How often a driver is told the node's load."""
KEEP_SECONDS = 5.0
"""After which an exchange is answered with nothing, so that both ends know of each other."""


class InOrder:
    """Hands batches on in the order of their numbers, which begin with 1."""

    def __init__(self, take: Callable[[Message], None]) -> None:
        self._take, self._next = take, 1
        self._early: dict[int, list[Message]] = {}

    def put(self, number: int, messages: list[Message]) -> None:
        """Take a batch; those after it that came before it follow."""
        self._early[number] = messages
        while self._next in self._early:
            self._next += 1
            for message in self._early.pop(self._next - 1):
                self._take(message)


class NodeLink:
    """The exchanges of one driver that wait, and the messages for it."""

    def __init__(self, peer: MessagePeer) -> None:
        self.peer, self._received = peer, InOrder(peer.deliver)
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._sent = 0
        self._gathering = Gathering(self._flush)
        self._told = float("-inf")
        self.heard = asyncio.get_running_loop().time()

    @property
    def silent_seconds(self) -> float:
        """For how long the driver has asked nothing and waits for nothing."""
        return 0.0 if self._waiting else asyncio.get_running_loop().time() - self.heard

    async def exchange(
        self, number: int, messages: list[Message], facts: Callable[[], dict[str, Any]]
    ) -> tuple[int, list[Message], dict[str, Any] | None]:
        """Take messages; return those for the driver as soon as there are any."""
        if self.peer.ended:
            raise SandboxLostError(self.peer.ended)
        loop = asyncio.get_running_loop()
        self.heard = loop.time()
        self._received.put(number, messages)
        turn = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) > MOST_WAITING:
            _release(self._waiting.popleft())
        if self.peer.outgoing:
            self.on_post()
        try:
            async with asyncio.timeout(KEEP_SECONDS):
                await turn
        except TimeoutError:
            pass
        finally:
            self.heard = loop.time()
            with contextlib.suppress(ValueError):
                self._waiting.remove(turn)
        self._sent += 1
        return self._sent, self.peer.take(), self._news(facts)

    def on_post(self) -> None:
        """Answer an exchange soon: messages of one moment travel together."""
        self._gathering.plan(self.peer.busy)

    def _flush(self) -> None:
        if self.peer.outgoing and self._waiting:
            _release(self._waiting.popleft())

    def _news(self, facts: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """Return the node's facts now and then: to send them costs more than a small message."""
        now = asyncio.get_running_loop().time()
        if now - self._told < FACTS_SECONDS:
            return None
        self._told = now
        return facts()


def _release(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
