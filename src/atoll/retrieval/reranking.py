"""Orders what the words have found by meaning too: fused with one vector, or token by token.

Only the best candidates are looked at, and their vectors are kept: a text is encoded once.
"""

from __future__ import annotations

import contextlib
import hashlib
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
_BY_MEANING = 0.5
"""The share of the vectors in a fused score; the words have the rest."""


def fused(store: Store, query: str, candidates: Ranked) -> Ranked:
    """By words and by one vector for each text, each stretched to 0 to 1."""
    import numpy as np  # noqa: PLC0415 - an extra

    if not candidates:
        return []
    vectors = np.stack(_vectors(store, candidates, tokens=False)).reshape(-1, DIMENSION)
    by_meaning = _stretched(vectors @ shared_encoder().dense(query))
    by_words = _stretched(np.array([score for _, score in candidates]))
    return _sorted(candidates, (1 - _BY_MEANING) * by_words + _BY_MEANING * by_meaning)


def maxsim(store: Store, query: str, candidates: Ranked) -> Ranked:
    """By late interaction: for each token of the query the nearest of the text, on average."""
    asked = shared_encoder().tokens(query)
    matrices = _vectors(store, candidates, tokens=True)
    return _sorted(candidates, [(asked @ one.T).max(axis=1).mean() for one in matrices])


def _sorted(candidates: Ranked, scores: Any) -> Ranked:
    pairs = [(unit, float(score)) for (unit, _), score in zip(candidates, scores, strict=True)]
    return sorted(pairs, key=lambda pair: -pair[1])


def _stretched(scores: Any) -> Any:
    low, high = scores.min(), scores.max()
    return (scores - low) / (high - low) if high > low else scores * 0 + 1


def _vectors(store: Store, candidates: Ranked, *, tokens: bool) -> list[Any]:
    """One array for each candidate; what is not kept yet is made, and kept if there is room."""
    import numpy as np  # noqa: PLC0415 - an extra

    texts = [_text(unit) for unit, _ in candidates]
    keys = [_key(text, tokens=tokens) for text in texts]
    kept = store.vectors(keys, tokens=tokens)
    missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in kept}
    encode = shared_encoder().tokens if tokens else shared_encoder().dense
    made = {key: encode(text).astype(np.float16).tobytes() for key, text in missing.items()}
    if made:
        most = MOST_TOKEN_MATRICES if tokens else MOST_DENSE
        with contextlib.suppress(RetrievalError):  # a full disk does not stop a search
            store.keep_vectors(made, tokens=tokens, most=most)
    return [_array(np, {**kept, **made}[key]) for key in keys]


def _array(np: Any, data: bytes) -> Any:
    return np.frombuffer(data, dtype=np.float16).astype(np.float32).reshape(-1, DIMENSION)


def _text(unit: Unit) -> str:
    """What is encoded: names taken apart and the doc first, as there is room for little."""
    parts: Sequence[str] = (unit.name, unit.signature, unit.doc, unit.body)
    return split_words("\n".join(part[:_CHARACTERS] for part in parts if part)[:_CHARACTERS])


def _key(text: str, *, tokens: bool) -> bytes:
    what = f"{MODEL} {MOST_TOKENS} {tokens}\n{text}"
    return hashlib.sha256(what.encode("utf-8", "replace")).digest()[:16]
