"""The research of a session: recall and note on the host, and a saved environment.

    ATOLL-ENVIRONMENT ⏎  {research, ranges seen, turns, size} as JSON ⏎  sandbox state  HMAC-SHA256

SECURITY: the signature is checked before the JSON is parsed. The sandbox's state has a signature of
its own and is never parsed on the host.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
from typing import TYPE_CHECKING, Any

from atoll.agent.environment.research.graph import ResearchContext
from atoll.agent.environment.tools import arguments
from atoll.errors import AtollError, StateError
from atoll.log import LogEvent, to_stdlib
from atoll.state.key import state_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.agent.environment.options import EnvironmentConfig
    from atoll.agent.environment.tools.documents import Documents
    from atoll.agent.environment.tools.invocations import InvocationLog
    from atoll.agent.environment.turns import Final
    from atoll.search.coverage import CoverageLog
    from atoll.search.index import ContextIndex


MAGIC = b"ATOLL-ENVIRONMENT\n"
MAC_BYTES = 32
MAX_HEADER = 16 << 20
MAX_RANGES = 20_000
WHOLE, SAMPLES = 1 << 24, 256
"""Characters up to which all of a context is compared; of a longer one, evenly spread samples."""
INTO_CONTEXT = ("peek", "grep", "doc_search")


def seal(
    state: bytes,
    research: ResearchContext,
    ledger: CoverageLog,
    index: ContextIndex | None,
    turns: int,
) -> bytes:
    """Return everything as one blob."""
    header = {
        "research": research.to_dict(),
        "scanned": ledger.ranges("scanned")[:MAX_RANGES],
        "shown": ledger.ranges("shown")[:MAX_RANGES],
        "context": fingerprint(index),
        "turns": turns,
    }
    body = MAGIC + json.dumps(header).encode() + b"\n" + state
    return body + hmac.digest(state_key(), body, "sha256")


def split_state(blob: bytes | None) -> tuple[bytes | None, dict[str, Any] | None]:
    """Return the sandbox's state, and the research saved beside it, if any."""
    if not isinstance(blob, bytes) or not blob.startswith(MAGIC):
        return blob, None
    body, signature = blob[:-MAC_BYTES], blob[-MAC_BYTES:]
    if not hmac.compare_digest(hmac.digest(state_key(), body, "sha256"), signature):
        raise StateError("the saved environment was cut, changed, or signed with another key")
    end = body.find(b"\n", len(MAGIC), len(MAGIC) + MAX_HEADER)
    try:
        header = json.loads(body[len(MAGIC) : end])
    except ValueError:
        raise StateError("the header of the saved environment is damaged") from None
    return body[end + 1 :], header


def load(
    header: dict[str, Any],
    research: ResearchContext,
    ledger: CoverageLog,
    index: ContextIndex | None,
) -> int:
    """Restore research and ranges, and return the number of turns.

    Over another context, the ranges are left out, and what was found in the old one is stale.
    """
    research.load(header["research"])
    if header["context"] != fingerprint(index):
        research.outdate(INTO_CONTEXT)
        return int(header["turns"])
    for start, end in header["scanned"]:
        ledger.scan(start, end)
    for start, end in header["shown"]:
        ledger.show(start, end)
    return int(header["turns"])


def fingerprint(index: ContextIndex | None) -> str:
    """Return what differs between contexts; of a very long one, by samples."""
    if index is None:
        return ""
    digest = hashlib.blake2b(str(index.length).encode(), digest_size=16)
    size = WHOLE // SAMPLES
    step = max(size, index.length // SAMPLES)
    for start in range(0, index.length, step):
        text = index.text(start, min(index.length, start + size))
        digest.update(text.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


MAX_RECALLED = 50
LONGEST_NOTE = 2_000


class ResearchTools:
    """The research context of one session, and the two functions on it."""

    def __init__(
        self,
        log: InvocationLog,
        documents: Documents,
        config: EnvironmentConfig,
        clean: Callable[[str], str],
    ) -> None:
        self._log, self._documents, self._memory = log, documents, config.memory
        self.context = ResearchContext(
            use_semantic=config.semantic_references, clean=clean, fingerprint=self._fingerprint
        )

    def recall(self, query: str = "", k: int = 5) -> list[dict[str, object]]:
        """What was found before that fits a query best; without a query, the tree of all of it."""
        self.update()
        if not query:
            return [{"tree": self.context.tree() or "fewer than three calls so far"}]
        wanted = arguments.text(query, "query")
        most = max(1, arguments.count(k, "k", MAX_RECALLED))
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
            self.context.conclude([final.text, *[quote.quote for quote in final.evidence]])

    def _earlier(self, query: str, most: int) -> list[dict[str, object]]:
        """Return earlier runs on similar questions; log a memory that fails, and return none."""
        if self._memory is None:
            return []
        try:
            result = self._memory.similar(query, most=most)
        except AtollError as exc:
            fields = {"reason": str(exc)}
            to_stdlib(LogEvent(name="memory_not_read", level=logging.WARNING, fields=fields))
            return []
        return [
            {
                "id": f"run {entry.id}",
                "call": entry.intent,
                "found": f"{entry.strategy}: {entry.done}",
                "status": entry.outcome,
                "score": round(score, 3),
                "q": round(entry.q, 2),
            }
            for score, entry in result
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
