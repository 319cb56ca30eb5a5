"""The policy of fetches: which URLs and addresses, by the tables of ssrfguard.

SECURITY: a name is resolved once. All its addresses must be allowed, and the connection goes to one
of them: no second lookup could return another address (DNS rebinding).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from ipaddress import ip_network
from typing import TYPE_CHECKING, TypeVar

from atoll.errors import ConfigError, WebError, WebRefusedError
from atoll.extras import hint
from atoll.policy import MIB, check_positive, checked_keywords

if TYPE_CHECKING:
    from collections.abc import Callable

    from ssrfguard import Address, Policy, Resolver, Target

REDIRECTS = frozenset({301, 302, 303, 307, 308})
_NUMBERS = ("max_bytes", "timeout_seconds", "max_redirects", "cache_seconds")
_OFF = "web_fetch is off: give WebPolicy(allow=('docs.python.org', '*.example.org'))"
_OUR_WORDS = {
    "allowed_hosts": "WebPolicy.allow",
    "allowed_ports": "WebPolicy.ports",
    "allowed_networks": "WebPolicy.dangerous_networks",
}
_SHOWN = 300
_TRANSLATED = ip_network("::ffff:0:0:0/96")
"""IPv4 addresses behind a translator (RFC 2765), which ssrfguard does not check."""
T = TypeVar("T")


@checked_keywords("option of WebPolicy")
@dataclass(frozen=True, slots=True, kw_only=True)
class WebPolicy:
    """What may be fetched: nothing, unless hosts are named."""

    allow: tuple[str, ...] = ()
    """Hosts: `docs.python.org`, or `*.example.org` for its subdomains, without itself."""
    max_bytes: int = 5 * MIB
    """Bytes of a body, packed and unpacked; a longer text is cut, a longer PDF refused."""
    timeout_seconds: float = 20
    """For everything: lookup, redirects, body, text."""
    max_redirects: int = 5
    cache_seconds: float = 300
    """How long a page is returned from the cache; 0: never."""
    ports: tuple[int, ...] = (80, 443)
    dangerous_networks: tuple[str, ...] = ()
    """Private networks that are allowed, such as `127.0.0.1/32` in tests."""

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            if (value := getattr(self, name)) or name in {"max_bytes", "timeout_seconds"}:
                check_positive(name, value)
        for field in fields(self):
            if field.name not in _NUMBERS and isinstance(getattr(self, field.name), str):
                raise ConfigError(f"{field.name} must be a tuple, such as ('docs.python.org',)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A fetched page as text."""

    url: str
    """The URL that was requested."""
    final_url: str
    """The URL after redirects."""
    status: int
    content_type: str
    title: str
    text: str
    truncated: bool
    """Whether there was more than `max_bytes`, or less than Content-Length said."""
    from_cache: bool = False


class Guard:
    """Checks URLs and addresses against a policy."""

    def __init__(self, policy: WebPolicy, resolver: Resolver | None) -> None:
        """`resolver` replaces `socket.getaddrinfo`; its answers are checked as well."""
        self._off = not policy.allow
        self._resolver = resolver
        self._policy = _made(policy)

    def check(self, url: str) -> Target:
        """Return scheme, host and port of an allowed URL; raise WebRefusedError otherwise."""
        if self._off:
            raise WebRefusedError(_OFF)
        if not isinstance(url, str):
            raise ConfigError(f"url must be a text, not {type(url).__name__}")
        if "\\" in url:
            raise WebRefusedError(_message(url, "a backslash is read in two ways: write %5C"))
        return _asked(url, lambda: self._policy.check_url(url))

    def resolve(self, target: Target) -> tuple[Address, ...]:
        """Return the addresses to connect to, all checked. It blocks."""
        from ssrfguard import resolve  # noqa: PLC0415 - an extra

        def look_up() -> tuple[Address, ...]:
            return resolve(target, policy=self._policy, resolver=self._resolver)

        try:
            addresses = _asked(target.host, look_up)
        except OSError as exc:
            raise WebError(f"{target.host} has no address: {exc}") from None
        if any(item.ip in _TRANSLATED for item in addresses):
            raise WebRefusedError(_message(target.host, f"{_TRANSLATED} hides an IPv4 address"))
        return addresses


def _made(policy: WebPolicy) -> Policy:
    try:
        import ssrfguard  # noqa: PLC0415 - an extra
    except ImportError:
        raise ConfigError(f"web_fetch needs ssrfguard. {hint('web')}") from None
    try:
        return ssrfguard.Policy(
            allowed_hosts=frozenset(policy.allow),
            allowed_ports=frozenset(policy.ports),
            allowed_networks=policy.dangerous_networks,  # type: ignore[arg-type] # texts are parsed
        )
    except (ValueError, TypeError) as exc:
        raise ConfigError(_translated(str(exc))) from None


def _asked(what: str, ask: Callable[[], T]) -> T:
    from ssrfguard import BlockedAddressError, BlockedURLError  # noqa: PLC0415 - an extra

    try:
        return ask()
    except (BlockedURLError, BlockedAddressError) as exc:
        raise WebRefusedError(_message(what, _translated(exc.reason))) from None


def _message(what: str, reason: str) -> str:
    return f"{what[:_SHOWN]!r} is refused: {reason[: 2 * _SHOWN]}"


def _translated(text: str) -> str:
    for theirs, ours in _OUR_WORDS.items():
        text = text.replace(theirs, ours)
    return text
