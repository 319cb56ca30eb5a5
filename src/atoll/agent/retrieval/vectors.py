"""Vectors of the units of an index: made little by little, cached on disk, searched by meaning.

    units without vectors ─ encoder, at most some seconds ─▶ cache ─▶ nearest to a query
                                                                └──▶ token by token, of a few

One pass of the model gives both forms: one vector for the text, and one for each of its tokens.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.agent.retrieval.encoder import DIMENSION, shared_encoder
from atoll.agent.retrieval.meaning import key_of, text_of
from atoll.concurrency import forks
from atoll.errors import RetrievalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.agent.retrieval.store import Store
    from atoll.agent.retrieval.types import Progress, Unit

MOST_DENSE, MOST_TOKEN_MATRICES = 100_000, 1_000
"""Most cached vectors: 77 MB of dense ones, at most 98 MB of token vectors."""
LEAST_MEANING = 0.2
"""Cosine from which a unit has something to do with a query."""
BATCH = 32
"""Units that are encoded before their vectors are written: what was done is kept."""
_ROWS = 8_192
"""Vectors that are compared at a time: they are stored as float16, and computed with as float32."""


@dataclass(frozen=True, slots=True)
class _Matrix:
    """The vectors of one corpus, and the ids of their units, in one state of the index."""

    state: tuple[int, int]
    ids: list[int]
    rows: Any


class Vectors:
    """The vectors of one index; for several threads at once."""

    def __init__(self, store: Store, *, by_token: bool) -> None:
        """`by_token`: searches compare tokens, so that their vectors are kept for a small index."""
        self._store, self._by_token = store, by_token
        self._matrices: dict[str, _Matrix] = {}
        self._lock = forks.new_lock()

    def encode_missing(
        self, corpus: str, until: float, progress: Progress | None = None
    ) -> tuple[int, int]:
        """Encode units that have no vector, until a time; return how many have one, of how many.

        `progress` is called after each batch with these two numbers.
        """
        with self._lock:
            done, total = self._store.encoded(corpus, MOST_DENSE)
            while done < total and time.monotonic() < until:
                units = self._store.unencoded(corpus, BATCH)
                keep = self._by_token and total <= MOST_TOKEN_MATRICES
                made = self._encode(units, until, tokens=keep)
                if not made:
                    break
                known = done
                done, total = self._store.encoded(corpus, MOST_DENSE)
                if progress:
                    progress(done, total)
                if done <= known:  # the disk is full
                    break
            return done, total

    def nearest(self, corpus: str, asked: Any, most: int) -> list[tuple[Unit, float]]:
        """Return the units whose vectors are nearest to that of a query, with their cosine."""
        import numpy as np  # noqa: PLC0415 - an extra

        with self._lock:
            matrix = self._matrix(corpus)
        if not matrix.ids:
            return []
        scores = np.concatenate(
            [
                matrix.rows[at : at + _ROWS].astype(np.float32) @ asked
                for at in range(0, len(matrix.ids), _ROWS)
            ]
        )
        best = np.argsort(-scores, kind="stable")[:most]
        chosen = {matrix.ids[at]: float(scores[at]) for at in best if scores[at] >= LEAST_MEANING}
        return [(unit, chosen[number]) for number, unit in self._store.units(list(chosen))]

    def dense(self, units: Sequence[Unit], until: float) -> list[Any | None]:
        """Return one vector for each unit; None where time was not enough."""
        return [None if one is None else one[0] for one in self._arrays(units, until, tokens=False)]

    def tokens(self, units: Sequence[Unit], until: float) -> list[Any | None]:
        """Return an array of one vector for each token, of each unit; None without time for it."""
        return self._arrays(units, until, tokens=True)

    def _arrays(self, units: Sequence[Unit], until: float, *, tokens: bool) -> list[Any | None]:
        keys = [key_of(unit) for unit in units]
        with self._lock:
            kept = self._store.vectors(keys, tokens=tokens)
            missing = [unit for unit, key in zip(units, keys, strict=True) if key not in kept]
            kept |= self._encode(missing, until, tokens=tokens)
        return [_array(kept[key]) if key in kept else None for key in keys]

    def _encode(self, units: Sequence[Unit], until: float, *, tokens: bool) -> dict[bytes, bytes]:
        """Encode units, at least one, until a time; cache their vectors and return one form."""
        encoder = shared_encoder()
        dense: dict[bytes, bytes] = {}
        matrices: dict[bytes, bytes] = {}
        for unit in units:
            one, rows = encoder.both(text_of(unit))
            key = key_of(unit)
            dense[key] = one.astype("float16").tobytes()
            if tokens:
                matrices[key] = rows.astype("float16").tobytes()
            if time.monotonic() > until:
                break
        with contextlib.suppress(RetrievalError):  # a full disk does not stop a search
            if dense:
                self._store.keep_vectors(dense, tokens=False, most=MOST_DENSE)
            if matrices:
                self._store.keep_vectors(matrices, tokens=True, most=MOST_TOKEN_MATRICES)
        return matrices if tokens else dense

    def _matrix(self, corpus: str) -> _Matrix:
        import numpy as np  # noqa: PLC0415 - an extra

        state = self._store.state
        known = self._matrices.get(corpus)
        if known is not None and known.state == state:
            return known
        pairs = self._store.dense_vectors(corpus, MOST_DENSE)
        rows = np.frombuffer(b"".join(data for _, data in pairs), dtype=np.float16)
        ids = [number for number, _ in pairs]
        found = _Matrix(state, ids, rows.reshape(len(ids), DIMENSION))
        self._matrices[corpus] = found
        return found


def _array(data: bytes) -> Any:
    import numpy as np  # noqa: PLC0415 - an extra

    return np.frombuffer(data, dtype=np.float16).astype(np.float32).reshape(-1, DIMENSION)
