"""Decides which URLs and addresses may be requested, by the tables of ssrfguard.

SECURITY: a name is resolved once. All its addresses must be allowed, and the connection goes to one
of them: no second lookup could return another address (DNS rebinding).
"""

from __future__ import annotations

from ipaddress import ip_network
from typing import TYPE_CHECKING, TypeVar

from atoll.errors import ConfigError, WebError, WebRefusedError
from atoll.extras import hint

if TYPE_CHECKING:
    from collections.abc import Callable

    from ssrfguard import Address, Policy, Resolver, Target

    from atoll.egress.web_policy import WebPolicy

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
            found = _asked(target.host, look_up)
        except OSError as exc:
            raise WebError(f"{target.host} has no address: {exc}") from None
        if any(one.ip in _TRANSLATED for one in found):
            raise WebRefusedError(_message(target.host, f"{_TRANSLATED} hides an IPv4 address"))
        return found


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
