"""Candidates by words and by meaning, and their order: token by token, or by words and a vector.

    words (FTS5) ──▶ 50 ─┐
                         ├─▶ in turn ──▶ MaxSim: of each token of the query the nearest token
    vectors ───────▶ 50 ─┘          └──▶ fused: half by words, half by the cosine of whole texts

What was not encoded in time ranks behind the others, and the next search continues there.
"""

from __future__ import annotations

import time
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from atoll.agent.retrieval.encoder import shared_encoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.agent.retrieval.store import Store
    from atoll.agent.retrieval.types import Unit
    from atoll.agent.retrieval.vectors import Vectors

    Ranked = list[tuple[Unit, float]]

CANDIDATES = 50
"""Units that are found by words, and units that are found by their vectors."""
ENCODE_SECONDS = 6.0
"""Seconds of a search to encode texts: half for units that have no vector, half to compare."""
_BY_MEANING = 0.5
"""Weight of the vectors in a fused score; the words have the rest."""


def ranked_by_meaning(
    store: Store, vectors: Vectors, query: str, corpus: str, *, k: int, mode: str
) -> tuple[Ranked, str]:
    """Return units by meaning, best first, and what to tell of those that were not reached."""
    begun = time.monotonic()
    done, total = vectors.encode_missing(corpus, begun + ENCODE_SECONDS / 2)
    dense, tokens = shared_encoder().both(query)
    most = max(k, CANDIDATES)
    by_words = store.search(query, corpus, most)
    by_vector = vectors.nearest(corpus, dense, most)
    units = _in_turn([unit for unit, _ in by_words], [unit for unit, _ in by_vector])
    until = begun + ENCODE_SECONDS
    if mode == "maxsim":
        arrays = vectors.tokens(units, until)
        scores = [None if one is None else _maxsim(tokens, one) for one in arrays]
    else:
        scores = _fused(vectors.dense(units, until), dense, units, by_words)
    return _sorted(units, scores), _shortfall(scores, done, total)


def _maxsim(asked: Any, found: Any) -> float:
    """Return the average, over the query's tokens, of the similarity of the nearest token."""
    return float((asked @ found.T).max(axis=1).mean())


def _fused(
    arrays: list[Any | None], asked: Any, units: list[Unit], by_words: Ranked
) -> list[float | None]:
    """Return scores by words and by one vector for each text, both scaled to 0 to 1."""
    lowest = min((score for _, score in by_words), default=0.0)
    words = {_place(unit): score for unit, score in by_words}
    reached = [at for at, one in enumerate(arrays) if one is not None]
    meaning = _stretched([float(arrays[at] @ asked) for at in reached])
    wording = _stretched([words.get(_place(units[at]), lowest) for at in reached])
    scores: list[float | None] = [None] * len(units)
    for at, near, said in zip(reached, meaning, wording, strict=True):
        scores[at] = (1 - _BY_MEANING) * said + _BY_MEANING * near
    return scores


def _in_turn(*found: Sequence[Unit]) -> list[Unit]:
    """Return units of several lists without repeats, the best of each first."""
    both = [unit for rank in zip_longest(*found) for unit in rank if unit is not None]
    return list({_place(unit): unit for unit in reversed(both)}.values())[::-1]


def _place(unit: Unit) -> tuple[str, int, int, str]:
    return unit.path, unit.start, unit.end, unit.name


def _sorted(units: list[Unit], scores: Sequence[float | None]) -> Ranked:
    """Sort by score; units without one follow in their order, with score 0."""
    pairs = zip(units, scores, strict=True)
    reached = [(unit, score) for unit, score in pairs if score is not None]
    rest = [(unit, 0.0) for unit, score in zip(units, scores, strict=True) if score is None]
    return sorted(reached, key=lambda pair: -pair[1]) + rest


def _stretched(scores: list[float]) -> list[float]:
    low, high = min(scores, default=0.0), max(scores, default=0.0)
    return [(one - low) / (high - low) if high > low else 1.0 for one in scores]


def _shortfall(scores: Sequence[float | None], done: int, total: int) -> str:
    limit, notes = f"{ENCODE_SECONDS:g} s", []
    if reached := sum(one is None for one in scores):
        notes.append(
            f"{len(scores) - reached} of {len(scores)} candidates were compared by meaning in "
            f"{limit}: ask again for more"
        )
    if done < total:
        notes.append(
            f"{done:,} of {total:,} units can be found by meaning so far, the others by words "
            "alone: each search encodes more"
        )
    return "; ".join(notes)
