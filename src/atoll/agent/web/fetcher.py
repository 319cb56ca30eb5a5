"""Fetches pages as text: checks every redirect, with one time limit for all of it."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Self
from urllib.parse import urldefrag, urljoin

from atoll.agent.web.cache import Cache
from atoll.agent.web.reading import read
from atoll.egress.url_guard import Guard
from atoll.egress.web_policy import REDIRECTS, Page, WebPolicy
from atoll.errors import ConfigError, WebError, WebRefusedError
from atoll.extras import hint

if TYPE_CHECKING:
    from ssrfguard import Resolver

    from atoll.agent.web.exchange import Reply

_AT_ONCE = 4
"""Fetches, and DNS lookups, at one time; further ones wait."""
_OK = 200


class Fetcher:
    """Fetches for one guest, with a cache of its own."""

    def __init__(
        self, policy: WebPolicy | None = None, *, resolver: Resolver | None = None
    ) -> None:
        """`resolver`: in place of `socket.getaddrinfo`."""
        self.policy = policy or WebPolicy()
        self._guard = Guard(self.policy, resolver)
        self._cache = Cache(self.policy.cache_seconds)
        self._turns = asyncio.Semaphore(_AT_ONCE)
        # a lookup cannot be cancelled: it has its own threads, so that other work does not wait
        self._lookups = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="atoll-lookup")

    async def fetch(self, url: str) -> Page:
        """Return a page as text; WebRefusedError says which rule of the policy forbids it."""
        self._guard.check(url)
        key = urldefrag(url).url
        if page := self._cache.get(key):
            return replace(page, url=url)
        seconds = self.policy.timeout_seconds
        try:
            async with asyncio.timeout(seconds), self._turns:
                page, keep = await self._fetch(url)
        except TimeoutError:
            raise WebError(f"{url[:300]!r} took longer than timeout_seconds={seconds}") from None
        if keep:
            self._cache.put(key, page)
        return page

    def close(self) -> None:
        """Release the threads; lookups that still run end by themselves."""
        self._lookups.shutdown(wait=False, cancel_futures=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self.close()

    async def _fetch(self, url: str) -> tuple[Page, bool]:
        final, reply = await self._follow(urldefrag(url).url)
        content_type = reply.headers.get("content-type", "")
        seconds, most = self.policy.timeout_seconds, self.policy.max_bytes
        title, text, cut = await read(reply, content_type, seconds=seconds, most=most)
        page = Page(
            url=url,
            final_url=final,
            status=reply.status,
            content_type=content_type[:200],
            title=title,
            text=text,
            truncated=reply.truncated or cut,
        )
        stored = "no-store" not in reply.headers.get("cache-control", "").lower()
        return page, reply.status == _OK and stored

    async def _follow(self, url: str) -> tuple[str, Reply]:
        """Follow redirects and return the last reply; each URL is checked like the first."""
        for _ in range(self.policy.max_redirects + 1):
            reply = await self._once(url)
            location = reply.headers.get("location")
            if location is None or reply.status not in REDIRECTS:
                return url, reply
            url = urldefrag(urljoin(url, _readable(location))).url
        most = self.policy.max_redirects
        raise WebRefusedError(f"{url[:300]!r} is refused: more redirects than max_redirects={most}")

    async def _once(self, url: str) -> Reply:
        try:
            from atoll.agent.web.exchange import exchange  # noqa: PLC0415 - an extra
        except ImportError:
            raise ConfigError(f"web_fetch needs httpcore2. {hint('web')}") from None
        target = self._guard.check(url)
        loop = asyncio.get_running_loop()
        addresses = await loop.run_in_executor(self._lookups, self._guard.resolve, target)
        return await exchange(url, target, addresses, self.policy.max_bytes)


def _readable(location: str) -> str:
    """Decode a header again as UTF-8: HTTP says Latin-1, but servers mean UTF-8."""
    return location.encode("latin-1").decode("utf-8", "replace")
