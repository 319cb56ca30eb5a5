"""Search a context of any size for the passages that have most of a query's words.

There is no index of words: the linear grep of ContextIndex finds each word, rare words weigh more,
and the best windows are read and ranked. A gigabyte takes seconds.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.agent.retrieval.words import query_words

if TYPE_CHECKING:
    from atoll.search.grep import Grep
    from atoll.search.index import ContextIndex

WINDOW, MARGIN = 1_500, 300
"""Characters of a window, and of the margin in which a passage is extended to whole lines."""
MAX_WORDS, MAX_PLACES = 12, 3_000
CANDIDATES = 200
"""Most windows that are read."""
WORD_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A part of the context; `text` is context[start:end]."""

    start: int
    end: int
    text: str
    score: float


def search_context(index: ContextIndex, query: str, k: int) -> list[Passage]:
    """Return the best k passages for a query, the best first."""
    words = query_words(query)[:MAX_WORDS]
    greps = {
        word: index.grep(
            word, most=MAX_PLACES, ignore_case=True, literal=True, seconds=WORD_SECONDS
        )
        for word in words
    }
    windows = index.length / WINDOW + 1
    weights = {word: math.log1p(windows / (1 + hits.total)) for word, hits in greps.items()}
    best = heapq.nlargest(
        CANDIDATES, _by_window(greps, weights).items(), key=lambda window: window[1]
    )
    passages = [_passage(index, number, weights) for number, _ in best]
    return heapq.nlargest(k, passages, key=lambda passage: (passage.score, -passage.start))


def _by_window(greps: dict[str, Grep], weights: dict[str, float]) -> dict[int, float]:
    """Return the windows that contain any of the words, each with the sum of their weights."""
    scores: defaultdict[int, float] = defaultdict(float)
    for word, result in greps.items():
        for number in {hit.start // WINDOW for hit in result.hits}:
            scores[number] += weights[word]
    return scores


def _passage(index: ContextIndex, number: int, weights: dict[str, float]) -> Passage:
    """Read a window, from the beginning of a line to the end of one, and rank it."""
    first, last = number * WINDOW, min((number + 1) * WINDOW, index.length)
    low, high = max(0, first - MARGIN), min(index.length, last + MARGIN)
    text = index.text(low, high)
    start = text.rfind("\n", 0, first - low) + 1
    end = text.find("\n", last - low)
    text = text[start : len(text) if end < 0 else end]
    lower = text.lower()
    counts = {word: len(re.findall(re.escape(word), lower)) for word in weights}
    score = sum(weights[word] * (1 + 0.1 * min(n, 5)) for word, n in counts.items() if n)
    return Passage(start=low + start, end=low + start + len(text), text=text, score=score)
