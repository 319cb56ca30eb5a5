"""A cache of fetched pages, limited in number, size and time."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.egress.web_policy import Page

MOST_PAGES = 64
MOST_CHARACTERS = 16_000_000


class Cache:
    """The pages of one Fetcher by requested URL; the oldest are dropped first."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._now = seconds, now
        self._pages: OrderedDict[str, tuple[float, Page]] = OrderedDict()
        self.characters = 0

    def __len__(self) -> int:
        return len(self._pages)

    def get(self, key: str) -> Page | None:
        """Return the page, or None if there is none or it is too old."""
        kept = self._pages.get(key)
        if kept is None:
            return None
        if self._now() - kept[0] >= self._seconds:
            self._drop(key)
            return None
        return replace(kept[1], from_cache=True)

    def put(self, key: str, page: Page) -> None:
        """Add a page, and drop the oldest ones over the limits."""
        if not self._seconds:
            return
        self._drop(key)
        self._pages[key] = (self._now(), page)
        self.characters += _size(page)
        while len(self._pages) > MOST_PAGES or self.characters > MOST_CHARACTERS:
            self._drop(next(iter(self._pages)))

    def _drop(self, key: str) -> None:
        if kept := self._pages.pop(key, None):
            self.characters -= _size(kept[1])


def _size(page: Page) -> int:
    return sum(map(len, (page.text, page.title, page.url, page.final_url)))
