"""The policy of what may be fetched, and the page that a fetch returns."""

from __future__ import annotations

from dataclasses import dataclass, fields

from atoll.errors import ConfigError
from atoll.policy import MIB, check_positive, checked_keywords

REDIRECTS = frozenset({301, 302, 303, 307, 308})
_NUMBERS = ("max_bytes", "timeout_seconds", "max_redirects", "cache_seconds")


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
        for one in fields(self):
            if one.name not in _NUMBERS and isinstance(getattr(self, one.name), str):
                raise ConfigError(f"{one.name} must be a tuple, such as ('docs.python.org',)")


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
