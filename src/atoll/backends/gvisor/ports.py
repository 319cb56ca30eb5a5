"""Servers in a container with a kernel of its own, reached through a relay that runs in it.

SECURITY: the relay has the guest's rights. What it says is the guest's word: it is limited in size
and checked, and leads to nothing but the guest.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

from atoll.errors import PortError, SandboxLostError
from atoll.guest.core.relay import CONNECTED, MAX_LISTED, PORT_BYTES, REFUSED
from atoll.jail.measure.socket_table import listening
from atoll.jail.supervisor.guest_network import ANSWER_SECONDS, NOT_LISTENING
from atoll.jail.walls.guest_sockets import MAX_PORTS
from atoll.types import ListeningPort


class ContainerNetwork:
    """Asks the relay of one container."""

    def __init__(self, relay: socket.socket) -> None:
        self._relay = relay
        relay.setblocking(False)

    @property
    def closed(self) -> bool:
        """Whether the relay has ended."""
        return self._relay.fileno() < 0

    async def connect(self, port: int) -> socket.socket:
        """Return a connection with a server on the guest's loopback; PortError without one."""
        with contextlib.ExitStack() as undo:
            connection = undo.enter_context(self._ask(port))
            answer = await self._answer(connection, 1)
            if answer == REFUSED:
                raise PortError(port, NOT_LISTENING)
            if answer != CONNECTED:
                self._relay.close()  # guest code may have ended it: the next call starts another
                raise SandboxLostError("the guest's network cannot be reached: its relay has ended")
            undo.pop_all()
        connection.setblocking(True)
        return connection

    async def ports(self) -> tuple[ListeningPort, ...]:
        """Return the TCP ports that the guest listens on, as the relay says."""
        table = bytearray()
        with self._ask(0) as answers:
            while piece := await self._answer(answers, MAX_LISTED):
                table += piece
                if len(table) > MAX_LISTED:
                    break
        try:
            result = sorted(set(listening(bytes(table[:MAX_LISTED]).splitlines())))
        except (ValueError, OSError):
            return ()
        return tuple(ListeningPort(number=number, address=at) for number, at in result[:MAX_PORTS])

    def close(self) -> None:
        """End the relay; connections end with it."""
        self._relay.close()

    def _ask(self, port: int) -> socket.socket:
        """Send the relay one end of a new pair, and return the other."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._relay, [port.to_bytes(PORT_BYTES, "big")], [theirs.fileno()])
            except OSError as exc:
                ours.close()
                self._relay.close()
                raise SandboxLostError(f"the guest's network cannot be reached: {exc}") from None
        ours.setblocking(False)
        return ours

    async def _answer(self, connection: socket.socket, size: int) -> bytes:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await asyncio.get_running_loop().sock_recv(connection, size)
        except (OSError, TimeoutError):
            return b""
