"""The host's side of the helper in a jail's network: sockets, and the ports that are in use."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any, Protocol

from atoll.errors import PortError, SandboxLostError
from atoll.jail.supervisor import packets
from atoll.types import ListeningPort

if TYPE_CHECKING:
    from collections.abc import Callable

ANSWER_SECONDS = 10.0
CONNECT_SECONDS = 5.0
LOOPBACK = ((False, "127.0.0.1"), (True, "::1"))
"""Where servers listen: some programs resolve `localhost` to the second alone."""
NOT_LISTENING = "nothing listens there. ports() lists where the guest listens"


class GuestNetwork(Protocol):
    """The way to servers in a guest."""

    @property
    def closed(self) -> bool:
        """Whether it can no longer be used, and another has to be opened."""
        ...

    async def connect(self, port: int) -> socket.socket:
        """Return a connection with a server on the guest's loopback; PortError without one."""
        ...

    async def ports(self) -> tuple[ListeningPort, ...]:
        """Return the TCP ports that the guest listens on, lowest first."""
        ...

    def close(self) -> None:
        """Free what it holds; connections stay open."""
        ...


class JailNetwork:
    """Asks the helper in a jail's network; one request at a time."""

    def __init__(self, start: Callable[[int], None]) -> None:
        """`start` sends a descriptor to the supervisor, which starts a helper that serves it."""
        self._socket, theirs = packets.pair()
        self._socket.setblocking(False)
        self._turn = asyncio.Lock()
        try:
            with theirs:
                start(theirs.fileno())
        except BaseException:
            self._socket.close()
            raise

    @property
    def closed(self) -> bool:
        """Whether it can no longer be used."""
        return self._socket.fileno() < 0

    async def connect(self, port: int) -> socket.socket:
        """Return a connection with a server on the jail's loopback; PortError without one."""
        loop = asyncio.get_running_loop()
        for ipv6, host in LOOPBACK:
            made = socket.socket(fileno=(await self._ask("socket", ipv6=ipv6)).fds[0])
            try:
                made.setblocking(False)
                async with asyncio.timeout(CONNECT_SECONDS):
                    await loop.sock_connect(made, (host, port))
            except TimeoutError:
                made.close()
                reason = f"its server did not accept a connection within {CONNECT_SECONDS:g} s"
                raise PortError(port, reason) from None
            except OSError:  # refused, or the jail has no such address
                made.close()
            except BaseException:
                made.close()
                raise
            else:
                made.setblocking(True)
                return made
        raise PortError(port, NOT_LISTENING)

    async def ports(self) -> tuple[ListeningPort, ...]:
        """Return the TCP ports that processes in the jail listen on, as its kernel has them."""
        ports = (await self._ask("ports")).fields["ports"]
        return tuple(ListeningPort(number=port, address=address) for port, address in ports)

    def close(self) -> None:
        """End the helper."""
        self._socket.close()

    async def _ask(self, kind: str, **fields: Any) -> packets.Message:
        """Return the helper's answer; SandboxLostError if it has none, and close this."""
        async with self._turn:
            try:
                packets.send(self._socket, kind, **fields)
                async with asyncio.timeout(ANSWER_SECONDS):
                    answer = await self._receive()
            except (OSError, TimeoutError) as exc:
                reason = f"its helper did not answer ({type(exc).__name__})"
            except BaseException:
                self.close()  # or the next caller would get this one's answer
                raise
            else:
                if answer is not None and answer.kind == kind:
                    return answer
                reason = answer.fields["reason"] if answer else "its helper was ended"
            self.close()
            raise SandboxLostError(f"the guest's network cannot be reached: {reason}")

    async def _receive(self) -> packets.Message | None:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._socket, ready.set)
        try:
            while True:
                with contextlib.suppress(BlockingIOError):
                    return packets.receive(self._socket, packets.MAX_PACKET)
                ready.clear()
                await ready.wait()
        finally:
            loop.remove_reader(self._socket)
