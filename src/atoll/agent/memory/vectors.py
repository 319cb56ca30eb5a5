"""Vectors of short texts, for similarity: by the embedded encoder, or by hashed words without it.

`Words` needs no extra. With it, texts that share no word have similarity 0.
"""

from __future__ import annotations

import array
import hashlib
import itertools
import math
import re
from typing import TYPE_CHECKING, Any, Protocol

from atoll.agent.retrieval import vectors

if TYPE_CHECKING:
    from collections.abc import Sequence

LONGEST = 2_000
"""Characters of a text that its vector is made from."""
_WORD = re.compile(r"[^\W_]+")
_NAME = re.compile(r"(?<=[a-z,;:] )[A-Z]\w+(?: [A-Z]\w+)*|\b[A-Z]\w+(?=')")
"""Capital letters within a sentence."""
_NUMBER = re.compile(r"\d[\d.,]*")
_COMMON = frozenset(
    """
    a all an and any are as at be by did do does each every for from has have how i in is it its
    me of on or that the their there these this those to was were what when where which who
    whose why will with
""".split()
)
"""Words that say nothing about a question's kind alone; they are kept in pairs of words."""


class Embedder(Protocol):
    """Turns a text into a unit vector."""

    name: str
    """Vectors are compared only with those of the same name."""

    def embed(self, text: str) -> Sequence[float]:
        """Return the unit vector of a text; all zeros for a text without words."""
        ...


class Meaning:
    """Vectors by the embedded encoder (extra `semantic`)."""

    name = vectors.MODEL

    def embed(self, text: str) -> Sequence[float]:
        """Return 384 numbers; RetrievalError if the extra is missing."""
        result: Sequence[float] = vectors.shared_encoder().dense(text[:LONGEST])
        return result


class Words:
    """Vectors by hashed words and pairs of words: texts with the same wording are close."""

    name = "words-256"
    SIZE = 256

    def embed(self, text: str) -> Sequence[float]:
        """Return 256 numbers."""
        words = _WORD.findall(text[:LONGEST].lower())
        counts = [0.0] * self.SIZE
        for word in words:
            counts[_place(word, self.SIZE)] += 0.1 if word in _COMMON or word.isdigit() else 1.0
        for first, second in itertools.pairwise(words):
            counts[_place(f"{first} {second}", self.SIZE)] += 0.5
        return unit(counts)


class Intents:
    """Vectors of questions, in which the wording counts as much as the subject.

    The best strategy depends on the kind of a question, but the encoder mostly sees its subject. So
    names and numbers are left out, and half of the vector comes from hashed words.
    """

    def __init__(self, meaning: Embedder | None) -> None:
        """Without `meaning`, the vector has hashed words only."""
        self._meaning, self._words = meaning, Words()
        self.name = f"intent-1:{meaning.name if meaning else ''}:{Words.name}"

    def embed(self, text: str) -> Sequence[float]:
        """Return the vector of both halves."""
        kind = _NUMBER.sub("0", _NAME.sub("someone", text))
        words = self._words.embed(kind)
        return words if self._meaning is None else unit([*self._meaning.embed(kind), *words])


def intent_embedder() -> Embedder:
    """Return one with the embedded encoder if its extra is installed, else by words alone."""
    return Intents(Meaning() if vectors.is_installed() else None)


def unit(vector: Sequence[float]) -> array.array[float]:
    """Return a vector of length 1 in the same direction; zeros stay zeros."""
    length = math.sqrt(math.fsum(value * value for value in vector))
    return array.array("f", (value / length if length else 0.0 for value in vector))


def similarities(vector: Sequence[float], others: Sequence[bytes]) -> list[float]:
    """Return the cosine of a unit vector with others, each packed as by pack()."""
    size = 4 * len(vector)
    if any(len(other) != size for other in others):
        raise ValueError("vectors of another length cannot be compared")
    try:
        import numpy as np  # noqa: PLC0415 - an extra
    except ImportError:
        return [_dot(vector, other) for other in others]
    rows = np.frombuffer(b"".join(others), dtype=np.float32).reshape(len(others), len(vector))
    result: list[float] = (rows @ np.asarray(vector, dtype=np.float32)).tolist()
    return result


def pack(vector: Sequence[float]) -> bytes:
    """Return a vector as bytes: float32, in this machine's byte order."""
    return array.array("f", (float(value) for value in vector)).tobytes()


def _dot(vector: Sequence[float], packed: bytes) -> float:
    other = array.array("f")
    other.frombytes(packed)
    return math.fsum(a * b for a, b in zip(vector, other, strict=True))


def _place(word: str, size: int) -> int:
    digest: Any = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=4).digest()
    return int.from_bytes(digest, "little") % size
