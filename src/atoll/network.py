"""What a guest may reach: the policy, and the record of each request. The proxy is in `egress`."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from ipaddress import IPv6Address, ip_address, ip_network
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from atoll.errors import ConfigError
from atoll.policy import MIB, check_keys, check_positive

if TYPE_CHECKING:
    from ipaddress import IPv4Address

OnRequest = Callable[["NetworkRequest"], Any] | Callable[["NetworkRequest"], Awaitable[Any]]
NETWORK_CALL = "atoll_network_request"
"""The name by which the daemon calls the client's `on_request`; no guest is offered it."""
WEB_PORTS = (80, 443)
"""The ports of a host that is named without one."""
HTTPS = 443
_MAX_UNSAID = 5
_LIMITS = ("max_bytes", "max_requests", "max_seconds", "max_connections")
_HOST = re.compile(
    r"(\*\.)?[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*\Z"
)
_PORT = re.compile(r"(.*?)(?::(\d{1,5}))?\Z", re.DOTALL)
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z")
_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e\t]*[\x21-\x7e])?\Z")
MAX_SECRETS, SECRET_BYTES = 32, 8 * 1024
"""Most header values of a policy, and most characters of one: responses are searched for each."""
_OURS = frozenset({"host", "connection", "content-length", "transfer-encoding", "proxy-connection"})


@dataclass(frozen=True, slots=True)
class HostRule:
    """One entry of an allow or deny list: a host, all below a domain, or every host."""

    host: str
    """Lower case: `api.example.com`, `*.example.com`, an address, or `*`."""
    port: int | None
    address: IPv4Address | IPv6Address | None = None

    @classmethod
    def parse(cls, text: str) -> HostRule:
        """Return the rule for `host`, `host:port`, `*.domain`, `*`, `1.2.3.4:80`, `[::1]:80`."""
        match = _PORT.match(text.strip().lower()) if isinstance(text, str) else None
        host, port = match.groups() if match else ("", None)
        number = None if port is None else int(port)
        address = _address(host)
        host = str(address) if address else host.rstrip(".")
        bad_port = number is not None and not 0 < number < 1 << 16
        if bad_port or not (address or host == "*" or _HOST.match(host)):
            raise ConfigError(
                f"not a host: {text!r:.200}. Name it as 'api.example.com', 'api.example.com:443', "
                f"'*.example.com' or '[::1]:8080', without a scheme or path"
            )
        return cls(host, number, address)

    def covers(self, host: str, port: int) -> bool:
        """Return whether a request for this host (in lower case) and port is meant."""
        return self.names(host) and (port == self.port if self.port else port in WEB_PORTS)

    def names(self, host: str) -> bool:
        """Return whether the host is meant, whatever the port."""
        if self.host.startswith("*."):
            return host.endswith(self.host[1:]) and _address(host) is None
        return self.host in ("*", host)

    def contains(self, other: HostRule) -> bool:
        """Return whether this rule allows all that another one does.

        SECURITY: an address or localhost only if it is this very one: a rule that names it gives a
        right to private addresses, which `*` does not.
        """
        exact = other.address is not None or other.host == "localhost"
        below = self.host[:2] == "*." and other.host.endswith(self.host[1:])
        names = self.host == other.host or (not exact and (self.host == "*" or below))
        ours = WEB_PORTS if self.port is None else (self.port,)
        return names and set(WEB_PORTS if other.port is None else (other.port,)) <= set(ours)

    def __str__(self) -> str:
        host = f"[{self.host}]" if isinstance(self.address, IPv6Address) else self.host
        return host if self.port is None else f"{host}:{self.port}"


@dataclass(slots=True)
class NetworkSpent:
    """What a sandbox and its clones have used of their network limits."""

    requests: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """What a guest may reach through the host's proxy. A list of hosts stands for `allow`."""

    allow: tuple[str, ...] = ()
    """Hosts: `api.example.com:443`, `*.example.com` (all below it), `10.0.0.5:8080`, `*`. A host
    without a port means ports 80 and 443. Private addresses must be named."""
    _: KW_ONLY
    deny: tuple[str, ...] = ()
    """Hosts that are refused though `allow` has them; without a port, all their ports."""
    methods: tuple[str, ...] | None = None
    """Methods such as GET that requests may use; None: all. https needs `inspect_tls`."""
    paths: tuple[str, ...] | None = None
    """Paths such as `/v1/*` (`*` is any characters); None: all. https needs `inspect_tls`."""
    headers: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    """By host: headers that the proxy adds, and the guest never sees. Over https, which needs
    `inspect_tls`; a key with a port (`10.0.0.5:8080`) is for plain http there as well."""
    inspect_tls: bool = False
    """Whether the proxy reads https, with a certificate authority that this guest alone trusts."""
    private: tuple[str, ...] = ()
    """Private networks such as `10.0.0.0/8` in which the allowed names may have their addresses."""
    max_bytes: int | None = 256 * MIB
    """Bytes sent and received by all requests of a sandbox together."""
    max_requests: int | None = 10_000
    """Requests of a sandbox, refused ones included."""
    max_seconds: float | None = 120
    """The time that one request may take, or one https connection that is not inspected."""
    max_connections: int = 32
    """Connections of the guest at one time; more wait."""
    on_request: OnRequest | None = field(default=None, compare=False)
    """Called with each NetworkRequest that the policy allows: return False, or the reason as a
    str, to refuse it."""
    spent: NetworkSpent | None = field(default=None, init=False, repr=False, compare=False)
    """Counters that sandboxes with this policy go on with; None: each one has new ones."""

    def __post_init__(self) -> None:
        for name in _LIMITS:
            check_positive(name, getattr(self, name))
        for name in ("allow", "deny", "private", "methods", "paths"):
            object.__setattr__(self, name, _texts(name, getattr(self, name)))
        if not self.allow:
            raise ConfigError("a NetworkPolicy must allow a host: leave `network` out for none")
        for text in (*self.allow, *self.deny):
            HostRule.parse(text)
        for network in self.private:
            _check_network(network)
        for name, valid in (("methods", _TOKEN.match), ("paths", lambda path: path[:1] in "/*")):
            for text in getattr(self, name) or ():
                if not text or not valid(text):
                    raise ConfigError(f"{name} must look like {_SHAPES[name]}, not {text!r:.200}")
        object.__setattr__(self, "headers", _headers(self.headers))
        for host in self.headers:
            self._check_header_host(host)

    @classmethod
    def of(cls, given: object) -> NetworkPolicy | None:
        """Return the policy for a policy, a host, a list of hosts or a dict of fields; or None."""
        if given is None or isinstance(given, NetworkPolicy):
            return given
        if isinstance(given, Mapping):
            check_keys(
                "network field", given, (option.name for option in fields(cls) if option.init)
            )
            return cls(**given)
        hosts = (given,) if isinstance(given, str) else given
        if not isinstance(hosts, list | tuple | set | frozenset):
            kind = type(given).__name__
            raise ConfigError(f"network must be a list of hosts or a NetworkPolicy, not {kind}")
        return cls(tuple(hosts)) if hosts else None

    def counted(self, spent: NetworkSpent | None = None) -> NetworkPolicy:
        """Return a copy whose sandboxes all count on `spent`, such as one that is restored."""
        made = replace(self)
        object.__setattr__(made, "spent", spent or NetworkSpent())
        return made

    def _check_header_host(self, host: str) -> None:
        rule = HostRule.parse(host)
        if "*" in rule.host:
            raise ConfigError(f"headers are for one host each, not {host!r}")
        if not any(HostRule.parse(allowed).names(rule.host) for allowed in self.allow):
            raise ConfigError(f"headers for {host!r} would never be sent: `allow` does not have it")
        if not self.inspect_tls and rule.port in (None, HTTPS):
            raise ConfigError(
                f"headers for {host!r} go over https, which needs inspect_tls=True; to send them "
                f"in plain http, name its port: '{rule.host}:80'"
            )

    def plain(self) -> dict[str, object]:
        """Return the fields as plain data, for the daemon: the secrets too, but no function."""
        data = {option.name: getattr(self, option.name) for option in fields(self) if option.init}
        del data["on_request"]
        data["headers"] = {host: dict(added) for host, added in self.headers.items()}
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in data.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRequest:
    """One request of a guest: what it asked for, and what became of it."""

    host: str
    port: int
    method: str
    """CONNECT for an https connection that is not inspected."""
    scheme: str = "https"
    path: str = ""
    """Without the query."""
    status: int | None = None
    """The server's answer; None if there was none, or it could not be seen."""
    sent: int = 0
    received: int = 0
    """Bytes to and from the server."""
    refused: str | None = None
    """Why the request was refused or cut off; None if it was not."""
    failed: str | None = None
    """Why the server gave no answer to an allowed request, such as that it is down."""
    redacted: int = 0
    """How often a secret was taken out of the answer."""
    duration_ms: float = 0.0

    @property
    def place(self) -> str:
        """Host and port: `api.example.com:443`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def facts(self) -> dict[str, object]:
        """Return it as plain data, for logs and records."""
        names = ("method", "path", "status", "sent", "received", "refused", "failed", "redacted")
        return {"place": self.place, **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkUse:
    """What a guest did on the network during one execution."""

    requests: tuple[NetworkRequest, ...] = ()
    unlisted: int = 0
    """Requests beyond those listed: too many were made."""

    @property
    def refused(self) -> tuple[NetworkRequest, ...]:
        """The requests that were refused."""
        return tuple(request for request in self.requests if request.refused is not None)

    def unsaid(self, output: str) -> str:
        """Return the first refusals that an output does not show: curl and pip keep them back."""
        said = dict.fromkeys(f"NetworkNotAllowed: {refusal.refused}" for refusal in self.refused)
        return "".join(f"{text}\n" for text in list(said)[:_MAX_UNSAID] if text not in output)

    @property
    def sent(self) -> int:
        """Bytes sent to servers."""
        return sum(request.sent for request in self.requests)

    @property
    def received(self) -> int:
        """Bytes received from servers."""
        return sum(request.received for request in self.requests)


_SHAPES = {"methods": "('GET', 'POST')", "paths": "('/v1/*',)"}


def _address(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address that a host is, in its usual spelling; None for a name."""
    bracketed = host.startswith("[") and host.endswith("]")
    if ":" in host and not bracketed:
        return None
    try:
        return ip_address(host[1:-1] if bracketed else host)
    except ValueError:
        return None


def _texts(name: str, given: Any) -> tuple[str, ...] | None:
    if given is None and name in _SHAPES:
        return None
    if isinstance(given, str) or not isinstance(given, list | tuple | set | frozenset):
        raise ConfigError(f"{name} must be a list of str, not {given!r:.200}")
    if not all(isinstance(item, str) for item in given):
        raise ConfigError(f"{name} must be a list of str, not {given!r:.200}")
    return tuple(item.upper() if name == "methods" else item for item in given)


def _check_network(text: str) -> None:
    try:
        ip_network(text)
    except ValueError as exc:
        raise ConfigError(f"private must be networks such as '10.0.0.0/8': {exc}") from None


def _headers(given: Any) -> Mapping[str, Mapping[str, str]]:
    """Return a copy that cannot be changed. SECURITY: no message here shows a value."""
    if not isinstance(given, Mapping) or not all(
        isinstance(item, Mapping) for item in given.values()
    ):
        raise ConfigError("headers must be a dict of dicts: {'api.example.com': {'Name': 'value'}}")
    for host, added in given.items():
        for name, value in added.items():
            if not isinstance(name, str) or not _TOKEN.match(name) or name.lower() in _OURS:
                raise ConfigError(f"headers for {host!r}: {name!r:.100} cannot be set")
            if not isinstance(value, str) or not _VALUE.match(value):
                raise ConfigError(
                    f"headers for {host!r}: the value of {name!r} must be printable ASCII, without "
                    f"line breaks and outer spaces"
                )
            if len(value) > SECRET_BYTES:
                raise ConfigError(
                    f"headers for {host!r}: the value of {name!r} has {len(value)} characters, "
                    f"more than {SECRET_BYTES}"
                )
    values = {value for added in given.values() for value in added.values()}
    if len(values) > MAX_SECRETS:
        raise ConfigError(f"headers have {len(values)} different values, more than {MAX_SECRETS}")
    return MappingProxyType({h: MappingProxyType(dict(added)) for h, added in given.items()})
