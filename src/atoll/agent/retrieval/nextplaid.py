"""A client of NextPLAID, a server of late-interaction search, over HTTP.

SECURITY: its answers are validated, because the address may be another program's. It uses no proxy
and follows no redirect, so texts go to the configured address only.
"""

from __future__ import annotations

import http.client
import json
import re
import time
from itertools import zip_longest
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from atoll.agent.retrieval.vectors import shared_encoder
from atoll.errors import ConfigError, RetrievalError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from atoll.agent.retrieval.store import Store
    from atoll.agent.retrieval.types import Unit
    from atoll.agent.retrieval.vectors import Vectors

    Ranked = list[tuple[Unit, float]]


DEFAULT_URL = "http://127.0.0.1:8088"
PROBE_SECONDS = 0.3
REST_SECONDS = 60.0
"""A server that did not answer in time is not asked again for so long: each search would wait."""
_HEALTHY = ("healthy", "ok")
_LARGEST_ANSWER = 16 << 20
_BATCH = 100
_FINE = (200, 201, 202)
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
Place = tuple[str, str, int, int]
"""Path, name, start and end (in characters) of a unit."""
_CONNECTIONS = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}


class NextPlaid:
    """A server and the name of an index on it; every failure is a RetrievalError that says why."""

    def __init__(
        self, url: str = DEFAULT_URL, *, index: str | None = None, timeout_seconds: float = 10.0
    ) -> None:
        """Without the name of an index, each folder gets its own index."""
        parts = urlsplit(url)
        if parts.scheme not in _CONNECTIONS or not parts.hostname:
            raise ConfigError(f"not the URL of a server: {url!r}: use http://host:port")
        if index is not None and not _NAME.match(index):
            raise ConfigError(f"not the name of an index: {index!r}: use letters, digits, _ and -")
        self.url, self.index = url.rstrip("/"), index
        self._parts, self._timeout = parts, timeout_seconds
        self._rests_until = float("-inf")

    def health(self) -> dict[str, Any]:
        """Return the server's answer to /health."""
        answer = self._ask("GET", "/health")
        if not isinstance(answer, dict):
            raise RetrievalError(f"{self.url} is not a NextPLAID server: bad /health")
        return answer

    def create(self, index: str) -> bool:
        """Create an index; return False if it existed."""
        status, _ = self._exchange("POST", "/indices", {"name": index}, fine=(*_FINE, 409))
        return status != 409

    def add(self, index: str, units: Sequence[Unit]) -> None:
        """Send units to the server, which encodes them later."""
        for start in range(0, len(units), _BATCH):
            batch = units[start : start + _BATCH]
            body = {
                "documents": [_text(unit) for unit in batch],
                "metadata": [_metadata(unit) for unit in batch],
            }
            self._ask("POST", f"/indices/{index}/update_with_encoding", body)

    def remove(self, index: str, paths: Sequence[str]) -> None:
        """Remove the units of files that were deleted, or will be sent again."""
        for start in range(0, len(paths), _BATCH):
            batch = paths[start : start + _BATCH]
            condition = " OR ".join(["path = ?"] * len(batch))
            body = {"condition": condition, "parameters": list(batch)}
            self._exchange("DELETE", f"/indices/{index}/documents", body, fine=(*_FINE, 404))

    def search(self, index: str, query: str, k: int) -> list[tuple[Place, float]]:
        """Return the locations and scores of the best units."""
        body = {"queries": [query], "params": {"top_k": k}}
        answer = self._ask("POST", f"/indices/{index}/search_with_encoding", body)
        try:
            (result,) = answer["results"]
            pairs = zip(result["metadata"], result["scores"], strict=True)
            return [(_place(row), float(score)) for row, score in pairs][:k]
        except (KeyError, TypeError, ValueError) as exc:
            raise RetrievalError(f"{self.url} sent a malformed result: {exc!r}") from None

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        return self._exchange(method, path, body)[1]

    def _exchange(
        self, method: str, path: str, body: Any, fine: tuple[int, ...] = _FINE
    ) -> tuple[int, Any]:
        if time.monotonic() < self._rests_until:
            raise RetrievalError(f"NextPLAID at {self.url} did not answer in time just now")
        connect = _CONNECTIONS[self._parts.scheme]
        connection = connect(str(self._parts.hostname), self._parts.port, timeout=self._timeout)
        try:
            data = None if body is None else json.dumps(body).encode()
            headers = {"Content-Type": "application/json", "Accept": "application/json"}
            connection.request(method, self._parts.path.rstrip("/") + path, data, headers)
            response = connection.getresponse()
            text = response.read(_LARGEST_ANSWER + 1)
        except (OSError, http.client.HTTPException, ValueError) as exc:
            if isinstance(exc, TimeoutError):
                self._rests_until = time.monotonic() + REST_SECONDS
            raise RetrievalError(f"NextPLAID at {self.url} does not answer: {exc}") from None
        finally:
            connection.close()
        if response.status not in fine:
            said = text[:200].decode("utf-8", "replace")
            raise RetrievalError(f"NextPLAID at {self.url} answered {response.status}: {said}")
        return response.status, self._parsed(text)

    def _parsed(self, text: bytes) -> Any:
        if len(text) > _LARGEST_ANSWER:
            raise RetrievalError(f"NextPLAID answered more than {_LARGEST_ANSWER:,} bytes")
        try:
            return json.loads(text) if text else None
        except (ValueError, RecursionError):
            raise RetrievalError(f"NextPLAID at {self.url} did not return JSON") from None


def _text(unit: Unit) -> str:
    return "\n".join(part for part in (unit.name, unit.signature, unit.body) if part)


def _metadata(unit: Unit) -> dict[str, object]:
    return {"path": unit.path, "name": unit.name, "start": unit.start, "end": unit.end}


def _place(metadata: Mapping[str, Any]) -> Place:
    path, name = str(metadata["path"]), str(metadata["name"])
    return path, name, int(metadata["start"]), int(metadata["end"])


def find_server() -> NextPlaid | None:
    """Return the NextPLAID server at the default port of this machine, if it answers at once."""
    server = NextPlaid(DEFAULT_URL, timeout_seconds=PROBE_SECONDS)
    try:
        health = server.health()
    except RetrievalError:
        return None
    return NextPlaid(DEFAULT_URL) if health.get("status") in _HEALTHY else None


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
        scores = [None if array is None else _maxsim(tokens, array) for array in arrays]
    else:
        scores = _fused(vectors.dense(units, until), dense, units, by_words)
    return _sorted(units, scores), _shortfall(scores, done, total)


def _maxsim(asked: Any, result: Any) -> float:
    """Return the average, over the query's tokens, of the similarity of the nearest token."""
    return float((asked @ result.T).max(axis=1).mean())


def _fused(
    arrays: list[Any | None], asked: Any, units: list[Unit], by_words: Ranked
) -> list[float | None]:
    """Return scores by words and by one vector for each text, both scaled to 0 to 1."""
    lowest = min((score for _, score in by_words), default=0.0)
    words = {_unit_key(unit): score for unit, score in by_words}
    reached = [at for at, array in enumerate(arrays) if array is not None]
    meaning = _stretched([float(arrays[at] @ asked) for at in reached])
    wording = _stretched([words.get(_unit_key(units[at]), lowest) for at in reached])
    scores: list[float | None] = [None] * len(units)
    for at, near, said in zip(reached, meaning, wording, strict=True):
        scores[at] = (1 - _BY_MEANING) * said + _BY_MEANING * near
    return scores


def _in_turn(*rankings: Sequence[Unit]) -> list[Unit]:
    """Return units of several lists without repeats, the best of each first."""
    both = [unit for rank in zip_longest(*rankings) for unit in rank if unit is not None]
    return list({_unit_key(unit): unit for unit in reversed(both)}.values())[::-1]


def _unit_key(unit: Unit) -> tuple[str, int, int, str]:
    return unit.path, unit.start, unit.end, unit.name


def _sorted(units: list[Unit], scores: Sequence[float | None]) -> Ranked:
    """Sort by score; units without one follow in their order, with score 0."""
    pairs = zip(units, scores, strict=True)
    reached = [(unit, score) for unit, score in pairs if score is not None]
    rest = [(unit, 0.0) for unit, score in zip(units, scores, strict=True) if score is None]
    return sorted(reached, key=lambda pair: -pair[1]) + rest


def _stretched(scores: list[float]) -> list[float]:
    low, high = min(scores, default=0.0), max(scores, default=0.0)
    return [(score - low) / (high - low) if high > low else 1.0 for score in scores]


def _shortfall(scores: Sequence[float | None], done: int, total: int) -> str:
    limit, notes = f"{ENCODE_SECONDS:g} s", []
    if reached := sum(score is None for score in scores):
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
