"""The network of one sandbox and its live clones: the proxy, and the guest's settings for it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from atoll.egress.rules import Budget, Log, Rules
from atoll.errors import ConfigError
from atoll.extras import hint
from atoll.jail.supervisor.spec import GUEST_HOME
from atoll.jail.walls.loopback import PROXY_ADDRESS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ssrfguard import Resolver

    from atoll.config import SandboxConfig
    from atoll.egress.masks import Mask
    from atoll.egress.proxy import Proxy
    from atoll.network import NetworkPolicy, NetworkUse, OnRequest

PROXY_URL = f"http://{PROXY_ADDRESS[0]}:{PROXY_ADDRESS[1]}"
CA_FILE = f"{GUEST_HOME}/.atoll-network-ca.pem"
_PROXY_VARIABLES = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
)
CA_VARIABLES = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "PIP_CERT",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "AWS_CA_BUNDLE",
)
_BY_PROXY = (
    f"by HTTP through the proxy {PROXY_URL} alone (HTTP_PROXY and HTTPS_PROXY are set); it has no "
    f"other network, and the host's loopback only if it is named"
)
_THREADS = 4
_BY_FETCH = "by fetch(url) alone; it has no other network"
_OWN_LOOPBACK = "localhost,127.0.0.1,::1"


class Gateway:
    """The proxy of a guest, closed when the last sandbox that shares it is released."""

    def __init__(
        self,
        policy: NetworkPolicy,
        *,
        masks: Sequence[Mask] = (),
        resolver: Resolver | None = None,
    ) -> None:
        """`resolver` replaces `socket.getaddrinfo`. ConfigError if the extra is missing."""
        self._rules = Rules(policy)
        self._log = Log()
        self._shares: list[Share] = []
        self._serving: asyncio.Task[None] | None = None
        self._listener: socket.socket | None = None
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="atoll-network")
        self._proxy = self._make_proxy(policy, masks, resolver)

    def environment(self, own: Mapping[str, str]) -> dict[str, str]:
        """Return the variables by which clients in the guest find the proxy; `own` ones win."""
        variables = dict.fromkeys(_PROXY_VARIABLES, PROXY_URL)
        if not self._rules.names_loopback:  # or 127.0.0.1 goes to the proxy
            variables |= dict.fromkeys(("NO_PROXY", "no_proxy"), _OWN_LOOPBACK)
        if self._proxy.parts.authority is not None:
            variables |= dict.fromkeys(CA_VARIABLES, CA_FILE)
        return {name: value for name, value in variables.items() if name not in own}

    def guest_params(self, *, proxied: bool = True) -> dict[str, str]:
        """Return the guest's parameters, no secret: an error text, the authority's certificate."""
        way = _BY_PROXY if proxied else _BY_FETCH
        words = f"NetworkNotAllowed: this sandbox may reach {self._rules.summary}, {way}"
        params = {"words": words}
        if self._proxy.parts.authority is not None and proxied:
            params |= {"ca_file": CA_FILE, "ca": self._proxy.parts.authority.pem}
        return params

    def listen(self, listener: int | socket.socket) -> None:
        """Take over a socket that listens in the guest's network namespace, and serve on it."""
        opened = socket.socket(fileno=listener) if isinstance(listener, int) else listener
        self._listener = opened
        self._serving = asyncio.ensure_future(self._proxy.serve(opened))

    def with_fetch(self, config: SandboxConfig) -> SandboxConfig:
        """Return the configuration with the function `fetch` among its tools."""
        return dataclasses.replace(config, tools={"fetch": self.fetch, **config.tools})

    async def fetch(
        self,
        url: str,
        method: str = "GET",
        headers: dict[str, str] | None = None,
        body: str | bytes | None = None,
    ) -> dict[str, object]:
        """Send one HTTP request; return a dict of status, url, headers and body (bytes)."""
        from atoll.egress.fetch import fetch  # noqa: PLC0415 - it needs h11, an extra

        return await fetch(self._proxy, url, method, headers, body)

    def share(self, policy: NetworkPolicy | None) -> Share:
        """Return a share for one more sandbox, whose `on_request` decides from now on."""
        made = Share(self, self._log, policy.on_request if policy else None)
        self._shares.append(made)
        return made

    async def release(self, share: Share) -> None:
        """Release a sandbox's share; the last release closes everything."""
        if share not in self._shares:
            return
        self._shares.remove(share)
        self._log.end_list(share.requests)
        if not self._shares:
            await self.close()

    async def close(self) -> None:
        """Close every connection."""
        serving, self._serving = self._serving, None
        if serving is not None and self._listener is not None:
            self._listener.close()
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving
            await self._proxy.wait_closed()
        self._threads.shutdown(wait=False, cancel_futures=True)  # running threads end alone

    def _decider(self) -> OnRequest | None:
        """Return the caller's function of the newest sandbox: older ones may have ended."""
        return self._shares[-1].on_request if self._shares else None

    def _make_proxy(
        self, policy: NetworkPolicy, masks: Sequence[Mask], resolver: Resolver | None
    ) -> Proxy:
        try:
            import ssrfguard  # noqa: F401, PLC0415 - an extra

            from atoll.egress.proxy import Parts, Proxy  # noqa: PLC0415 - it needs h11, an extra
        except ImportError:
            raise ConfigError(f"network= needs the extra `network`. {hint('network')}") from None
        from atoll.egress.addresses import Connector  # noqa: PLC0415
        from atoll.egress.authority import Authority  # noqa: PLC0415
        from atoll.egress.credentials import Secrets  # noqa: PLC0415

        parts = Parts(
            rules=self._rules,
            secrets=Secrets(policy, masks),
            connector=Connector(self._rules, self._threads, resolver),
            budget=Budget(policy),
            log=self._log,
            authority=Authority() if policy.inspect_tls else None,
            threads=self._threads,
            on_request=self._decider,
        )
        return Proxy(parts)


class Share:
    """One sandbox's share of a gateway."""

    def __init__(self, gateway: Gateway, log: Log, on_request: OnRequest | None) -> None:
        self._gateway, self.on_request = gateway, on_request
        self.requests = log.new_list()

    def share(self, policy: NetworkPolicy | None) -> Share:
        """Return the share of a live clone, which has the same network, limits and proxy."""
        return self._gateway.share(policy)

    def with_fetch(self, config: SandboxConfig) -> SandboxConfig:
        """Return the configuration with the function `fetch` among its tools."""
        return self._gateway.with_fetch(config)

    def take(self) -> NetworkUse:
        """Return the requests since the last call."""
        return self.requests.take()

    async def release(self) -> None:
        """Release the share; the last release closes the proxy."""
        await self._gateway.release(self)
