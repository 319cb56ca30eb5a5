"""Orders what the words have found by meaning too: fused with one vector, or token by token.

Only the best candidates are looked at, and their vectors are kept: a text is encoded once. Each way
gives back how many candidates it had the time for.
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
"""Vectors that are kept: 77 MB of the one, at most 98 MB of the other."""
_CHARACTERS = 1_200
ENCODE_SECONDS = 5.0
"""For what no query has met before; what is not encoded by then keeps its place behind the rest."""
_BY_MEANING = 0.5
"""The share of the vectors in a fused score; the words have the rest."""


def fused(store: Store, query: str, candidates: Ranked) -> tuple[Ranked, int]:
    """By words and by one vector for each text, each stretched to 0 to 1."""
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
    """By late interaction: for each token of the query the nearest of the text, on average."""
    asked = shared_encoder().tokens(query)
    matrices = _vectors(store, candidates, tokens=True)
    scores = [(asked @ one.T).max(axis=1).mean() for one in matrices]
    return _sorted(candidates, scores), len(matrices)


def _sorted(candidates: Ranked, scores: Any) -> Ranked:
    """By the new scores; what has none comes after, in the order it had, with nothing."""
    pairs = [(unit, float(score)) for (unit, _), score in zip(candidates, scores, strict=False)]
    rest = [(unit, 0.0) for unit, _ in candidates[len(pairs) :]]
    return sorted(pairs, key=lambda pair: -pair[1]) + rest


def _stretched(scores: Any) -> Any:
    low, high = scores.min(), scores.max()
    return (scores - low) / (high - low) if high > low else scores * 0 + 1


def _vectors(store: Store, candidates: Ranked, *, tokens: bool) -> list[Any]:
    """One array for each candidate, as many as there is time for; new ones are kept."""
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
    """What is encoded: names taken apart and the doc first, as there is room for little."""
    parts: Sequence[str] = (unit.name, unit.signature, unit.doc, unit.body)
    return split_words("\n".join(part[:_CHARACTERS] for part in parts if part)[:_CHARACTERS])


def _key(text: str, *, tokens: bool) -> bytes:
    what = f"{MODEL} {MOST_TOKENS} {tokens}\n{text}"
    return hashlib.sha256(what.encode("utf-8", "replace")).digest()[:16]
