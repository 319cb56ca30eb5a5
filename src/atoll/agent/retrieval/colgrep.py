"""colgrep: finds code units by late interaction, filtered by a regular expression.

The command line and guests use it. Each token of the query is compared with each token of a unit:
by a NextPLAID server if one answers, else by the model of the extra `semantic`. Without either,
only words are compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.agent.retrieval.nextplaid import NextPlaid, find_server
from atoll.agent.retrieval.retriever import MOST_HITS, Retriever
from atoll.agent.retrieval.types import CODE, Hits
from atoll.extras import hint
from atoll.search.patterns import Pattern

if TYPE_CHECKING:
    import os

WORDS_ONLY = "found by words alone: start NextPLAID on port 8088, or install the extra `semantic`"


def open_index(root: str | os.PathLike[str], server: str | None = None) -> Retriever:
    """Return the index of a folder, which compares token by token if a server or model exists."""
    found = find_server() if server is None else NextPlaid(server)
    return Retriever(root, server=found)


def colgrep(index: Retriever, query: str, pattern: str | None = None, k: int = 10) -> Hits:
    """Return the best k units; with a pattern, those of the best MOST_HITS that match it."""
    if pattern is None:
        return _told(index.search(query, k=k, kind=CODE), k)
    # SECURITY: RE2, or `re` in a child process with a deadline: the pattern may be a guest's.
    compiled = Pattern(pattern, regex=True, ignore_case=False)
    hits = index.search(query, k=MOST_HITS, kind=CODE)
    fit = [one for one in hits if _matches(compiled, one.text)]
    return _told(Hits(fit, mode_used=hits.mode_used, warning=hits.warning), k)


def _matches(pattern: Pattern, text: str) -> bool:
    data = bytearray(f"{text}\n".encode("utf-8", "surrogatepass"))
    return pattern.within(data, len(data))(0) >= 0


def _told(hits: Hits, k: int) -> Hits:
    warning = hits.warning or (
        f"{WORDS_ONLY}. {hint('semantic')}" if hits.mode_used == "fts" else ""
    )
    return Hits(hits[:k], mode_used=hits.mode_used, warning=warning)
