"""Connections to servers: the name is resolved once, here, and every address is checked.

SECURITY: the checks are those of `web.guard`. The connection goes to an address that was checked;
no second lookup could return another (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import TYPE_CHECKING

from atoll.egress.certificates import explain
from atoll.egress.rules import RefusedError, UnreachableError
from atoll.egress.streams import PlainStream
from atoll.egress.url_guard import Guard, WebPolicy
from atoll.errors import ConfigError, WebError, WebRefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor

    from ssrfguard import Address, Resolver

    from atoll.egress.rules import Rules
    from atoll.network import NetworkRequest

MAX_ATTEMPTS = 4
ATTEMPT_SECONDS = 10.0
"""Seconds to connect to one address before the next is tried."""
MAX_PLACES = 256
_LOOPBACK = ("127.0.0.0/8", "::1/128")


class Connector:
    """Connects to the servers of one sandbox."""

    def __init__(self, rules: Rules, threads: Executor, resolver: Resolver | None = None) -> None:
        """`resolver` replaces `socket.getaddrinfo`; its answers are checked as well."""
        self._rules, self._threads, self._resolver = rules, threads, resolver
        self._guards: dict[tuple[str, int], Guard] = {}
        self._tls: ssl.SSLContext | None = None

    async def connect(self, asked: NetworkRequest, *, tls: bool) -> PlainStream:
        """Return a stream to the server, with TLS if asked; UnreachableError without one."""
        addresses = await self._addresses(asked)
        faults = []
        for address in addresses[:MAX_ATTEMPTS]:
            try:
                async with asyncio.timeout(ATTEMPT_SECONDS):
                    return await self._connect(asked, str(address.ip), tls=tls)
            except TimeoutError:
                faults.append("no answer")
            except OSError as exc:
                faults.append(
                    explain(exc.strerror or str(exc)) if tls else exc.strerror or str(exc)
                )
        raise UnreachableError(f"{asked.place} cannot be reached: {'; '.join(faults)[:500]}")

    async def _addresses(self, asked: NetworkRequest) -> Sequence[Address]:
        loop = asyncio.get_running_loop()
        try:
            guard = self._guard(asked.host, asked.port)
            host = f"[{asked.host}]" if ":" in asked.host else asked.host
            target = guard.check(f"{asked.scheme}://{host}:{asked.port}/")
            if target.is_literal_address:
                return guard.resolve(target)
            return await loop.run_in_executor(self._threads, guard.resolve, target)
        except (WebRefusedError, ConfigError) as exc:
            raise RefusedError(str(exc)[:500]) from None
        except WebError as exc:
            raise UnreachableError(str(exc)[:500]) from None

    def _guard(self, host: str, port: int) -> Guard:
        """Return the checks for one host and port; cached, because creating them is slow."""
        if (host, port) not in self._guards:
            networks = self._rules.policy.private
            if self._rules.named_address(host):
                networks += _LOOPBACK if host == "localhost" else (host,)
            policy = WebPolicy(allow=(host,), ports=(port,), dangerous_networks=networks)
            if len(self._guards) >= MAX_PLACES:
                self._guards.clear()
            self._guards[host, port] = Guard(policy, self._resolver)
        return self._guards[host, port]

    async def _connect(self, asked: NetworkRequest, address: str, *, tls: bool) -> PlainStream:
        reader, writer = await asyncio.open_connection(
            address,
            asked.port,
            ssl=self._tls_context() if tls else None,
            server_hostname=asked.host if tls else None,
            flags=socket.AI_NUMERICHOST,
        )
        return PlainStream(reader, writer, acknowledge=False)

    def _tls_context(self) -> ssl.SSLContext:
        """Return a TLS context with the system's authorities; cached, because it takes 20 ms."""
        if self._tls is None:
            self._tls = ssl.create_default_context()
            self._tls.set_alpn_protocols(["http/1.1"])
        return self._tls
