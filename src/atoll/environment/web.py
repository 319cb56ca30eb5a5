"""web_fetch on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.environment import arguments
from atoll.web import Fetcher, WebPolicy

if TYPE_CHECKING:
    from atoll.web import Page


class Web:
    """Fetches what the policy allows: without one, nothing."""

    def __init__(self, policy: WebPolicy | None) -> None:
        self._fetcher = Fetcher(policy or WebPolicy())

    async def web_fetch(self, url: str) -> str:
        """A page's text, under its title and address."""
        return _told(await self._fetcher.fetch(arguments.text(url, "url")))


def _told(page: Page) -> str:
    lines = [f"# {page.title}"] if page.title else []
    lines.append(f"[{page.status} {page.final_url}]")
    cut = "\n[the page was cut here]" if page.truncated else ""
    return "\n".join((*lines, "", page.text + cut))
