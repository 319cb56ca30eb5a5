"""Reranks the candidates of the word search by meaning: with one vector each, or token by token.

Only the best candidates are encoded, and their vectors are cached: a text is encoded once. Each
function also returns how many candidates it had the time for.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import time
from typing import TYPE_CHECKING, Any

from atoll.errors import RetrievalError
from atoll.retrieval.encoder import DIMENSION, MODEL, MOST_TOKENS, shared_encoder
from atoll.retrieval.words import split_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.retrieval.store import Store
    from atoll.retrieval.types import Unit

    Ranked = list[tuple[Unit, float]]

CANDIDATES = 50
MOST_DENSE, MOST_TOKEN_MATRICES = 100_000, 1_000
"""Most cached vectors: 77 MB of dense ones, at most 98 MB of token vectors."""
_CHARACTERS = 1_200
ENCODE_SECONDS = 5.0
"""Seconds to encode new texts; candidates without a vector by then rank behind the others."""
_BY_MEANING = 0.5
"""Weight of the vectors in a fused score; the words have the rest."""


def fused(store: Store, query: str, candidates: Ranked) -> tuple[Ranked, int]:
    """Rank by words and by one vector for each text, both scaled to 0 to 1."""
    import numpy as np  # noqa: PLC0415 - an extra

    asked = shared_encoder().dense(query)
    vectors = _vectors(store, candidates, tokens=False)
    if not vectors:
        return candidates, 0
    by_meaning = _stretched(np.concatenate(vectors) @ asked)
    by_words = _stretched(np.array([score for _, score in candidates[: len(vectors)]]))
    scores = (1 - _BY_MEANING) * by_words + _BY_MEANING * by_meaning
    return _sorted(candidates, scores), len(vectors)


def maxsim(store: Store, query: str, candidates: Ranked) -> tuple[Ranked, int]:
    """Rank by late interaction: the average, over the query's tokens, of the nearest token."""
    asked = shared_encoder().tokens(query)
    matrices = _vectors(store, candidates, tokens=True)
    scores = [(asked @ one.T).max(axis=1).mean() for one in matrices]
    return _sorted(candidates, scores), len(matrices)


def _sorted(candidates: Ranked, scores: Any) -> Ranked:
    """Sort by the new scores; candidates without one follow in their old order, with score 0."""
    pairs = [(unit, float(score)) for (unit, _), score in zip(candidates, scores, strict=False)]
    rest = [(unit, 0.0) for unit, _ in candidates[len(pairs) :]]
    return sorted(pairs, key=lambda pair: -pair[1]) + rest


def _stretched(scores: Any) -> Any:
    low, high = scores.min(), scores.max()
    return (scores - low) / (high - low) if high > low else scores * 0 + 1


def _vectors(store: Store, candidates: Ranked, *, tokens: bool) -> list[Any]:
    """Return the vectors of as many candidates as time allows; cache the new ones."""
    texts = [_text(unit) for unit, _ in candidates]
    keys = [_key(text, tokens=tokens) for text in texts]
    kept = store.vectors(keys, tokens=tokens)
    missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in kept}
    made = _encoded(missing, tokens=tokens)
    if made:
        most = MOST_TOKEN_MATRICES if tokens else MOST_DENSE
        with contextlib.suppress(RetrievalError):  # a full disk does not stop a search
            store.keep_vectors(made, tokens=tokens, most=most)
    there = {**kept, **made}
    reached = itertools.takewhile(there.__contains__, keys)
    return [_array(there[key]) for key in reached]


def _encoded(texts: dict[bytes, str], *, tokens: bool) -> dict[bytes, bytes]:
    encode = shared_encoder().tokens if tokens else shared_encoder().dense
    deadline, made = time.monotonic() + ENCODE_SECONDS, {}
    for key, text in texts.items():
        made[key] = encode(text).astype("float16").tobytes()
        if time.monotonic() > deadline:
            break
    return made


def _array(data: bytes) -> Any:
    import numpy as np  # noqa: PLC0415 - an extra

    return np.frombuffer(data, dtype=np.float16).astype(np.float32).reshape(-1, DIMENSION)


def _text(unit: Unit) -> str:
    """Return the text to encode: split names and the docstring first, because it is cut."""
    parts: Sequence[str] = (unit.name, unit.signature, unit.doc, unit.body)
    return split_words("\n".join(part[:_CHARACTERS] for part in parts if part)[:_CHARACTERS])


def _key(text: str, *, tokens: bool) -> bytes:
    what = f"{MODEL} {MOST_TOKENS} {tokens}\n{text}"
    return hashlib.sha256(what.encode("utf-8", "replace")).digest()[:16]
