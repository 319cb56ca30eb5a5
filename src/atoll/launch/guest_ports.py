"""The ports of a sandbox around one guest: what listens there, and connections with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.errors import PortError, UnsupportedError
from atoll.jail.supervisor.guest_network import NOT_LISTENING
from atoll.jail.walls.loopback import PROXY_ADDRESS
from atoll.policy import Capability, Isolation
from atoll.sandbox.base import BaseSandbox, check_port

if TYPE_CHECKING:
    import socket

    from atoll.config import SandboxConfig
    from atoll.jail.supervisor.guest_network import GuestNetwork
    from atoll.launch.handshake import RunningGuest
    from atoll.types import ListeningPort


class GuestPorts(BaseSandbox):
    """Reaches servers in the present guest, also while a cell runs."""

    _config: SandboxConfig
    _guest: RunningGuest | None
    _level: Isolation

    async def ports(self) -> tuple[ListeningPort, ...]:
        """List the TCP ports that the guest listens on, as its kernel has them."""
        if (network := self._guest_network()) is None:
            return ()
        listening = await network.ports()
        return tuple(port for port in listening if not self._is_proxy(port.number))

    async def connect(self, port: int) -> socket.socket:
        """Return a connection with a server on the guest's loopback; PortError without one."""
        check_port(port)
        network = self._guest_network()
        if network is None:
            raise PortError(port, NOT_LISTENING)
        if self._is_proxy(port):  # SECURITY: a visitor would reach what only the guest may
            raise PortError(port, "the proxy of the network policy listens there")
        return await network.connect(port)

    def _guest_network(self) -> GuestNetwork | None:
        """Return the way to the guest's servers; None without a guest."""
        if Capability.PORTS not in self.capabilities:
            raise self._unsupported(Capability.PORTS)
        self._require_open()
        if self._level < Isolation.JAILED:
            raise UnsupportedError(self.backend, f"reach ports where it is only {self._level}")
        guest = self._guest
        return None if guest is None or guest.session.dead else guest.lease.network()

    def _is_proxy(self, port: int) -> bool:
        return self._config.network is not None and port == PROXY_ADDRESS[1]
