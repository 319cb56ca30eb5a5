"""recall and note on the host: what a model finds again of its research and of earlier runs."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from atoll.agent.environment.research.tree_state import ResearchContext
from atoll.agent.environment.tools import arguments
from atoll.errors import AtollError
from atoll.log import LogEvent, to_stdlib
from atoll.sandbox.tools import Tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from atoll.agent.environment.tools.documents import Documents
    from atoll.agent.environment.tools.invocations import InvocationLog
    from atoll.agent.environment.types import Final
    from atoll.agent.memory.episodic import EpisodicMemory

MOST_RECALLED = 50
LONGEST_NOTE = 2_000


class ResearchTools:
    """The research context of one session, and the two functions on it."""

    def __init__(
        self,
        log: InvocationLog,
        documents: Documents,
        *,
        semantic: bool,
        clean: Callable[[str], str],
        memory: EpisodicMemory | None,
    ) -> None:
        self._log, self._documents, self._memory = log, documents, memory
        self.context = ResearchContext(
            use_semantic=semantic, clean=clean, fingerprint=self._fingerprint
        )

    def recall(self, query: str = "", k: int = 5) -> list[dict[str, Any]]:
        """What was found before that fits a query best; without a query, the tree of all of it."""
        self.update()
        if not query:
            return [{"tree": self.context.tree() or "fewer than three calls so far"}]
        wanted = arguments.text(query, "query")
        most = max(1, arguments.count(k, "k", MOST_RECALLED))
        self.context.refresh()
        return [
            {
                "id": node.id,
                "call": node.call,
                "found": node.found,
                "status": node.status,
                "score": score,
            }
            for score, node in self.context.recall(wanted, most)
        ] + self._earlier(wanted, most)

    def note(self, text: str) -> str:
        """Keep a remark in the research tree; ids in it, such as G1, become references."""
        arguments.text(text, "text", LONGEST_NOTE)
        return "noted"

    def update(self, final: Final | None = None) -> None:
        """Bring the research context up to the log; what an answer quotes has been analyzed."""
        self.context.update(self._log)
        if final is not None:
            self.context.conclude([final.text, *(one.quote for one in final.evidence)])

    def tools(self) -> Iterator[Tool]:
        """Yield the two tools."""
        yield Tool(
            name="recall",
            function=self.recall,
            usage="recall(query)",
            description="what you, or earlier runs, found on a question; recall() is the tree",
            allowed_callers=("code", "chain"),  # not read-only: it sees the calls before it
        )
        yield Tool(
            name="note",
            function=self.note,
            usage="note(text)",
            description="keep a remark for recall; name calls by their ids, such as G1",
            allowed_callers=("code", "chain"),
        )

    def _earlier(self, query: str, most: int) -> list[dict[str, Any]]:
        """Return earlier runs on similar questions; a memory that fails is told to the log."""
        if self._memory is None:
            return []
        try:
            found = self._memory.similar(query, most=most)
        except AtollError as exc:
            fields = {"reason": str(exc)}
            to_stdlib(LogEvent(name="memory_not_read", level=logging.WARNING, fields=fields))
            return []
        return [
            {
                "id": f"run {one.id}",
                "call": one.intent,
                "found": f"{one.strategy}: {one.done}",
                "status": one.outcome,
                "score": round(score, 3),
                "q": round(one.q, 2),
            }
            for score, one in found
        ]

    def _fingerprint(self, path: str) -> str | None:
        """Return what changes with a document: its inode, time and size."""
        try:
            with self._documents.opened(path) as fd:
                if fd is None:
                    return None
                info = os.fstat(fd)
        except (OSError, ValueError):
            return None
        return f"{info.st_dev}:{info.st_ino}:{info.st_mtime_ns}:{info.st_size}"
