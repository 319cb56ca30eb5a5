"""web_fetch on the host."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from atoll.agent.environment.tools import arguments

if TYPE_CHECKING:
    from atoll.agent.web import Fetcher, Page, WebPolicy


@dataclass
class Web:
    """Fetches what the policy allows: without one, nothing."""

    policy: WebPolicy | None

    async def web_fetch(self, url: str) -> str:
        """A page's text, under its title and address."""
        if self.policy is None:
            raise ValueError(
                "web_fetch is off here: use the context and the documents, which list_dir() shows. "
                "(The host can allow them: web=WebPolicy(allow=...))"
            )
        return _told(await self._fetcher.fetch(arguments.text(url, "url")))

    @cached_property
    def _fetcher(self) -> Fetcher:
        from atoll.agent.web import Fetcher, WebPolicy  # noqa: PLC0415 - few fetch

        return Fetcher(self.policy or WebPolicy())


def _told(page: Page) -> str:
    lines = [f"# {page.title}"] if page.title else []
    lines.append(f"[{page.status} {page.final_url}]")
    cut = "\n[the page was cut here]" if page.truncated else ""
    return "\n".join((*lines, "", page.text + cut))
