"""EpisodicMemory: what earlier runs did and how well it went, found again by similarity.

    retrieve(intent)   phase A: similarity >= 0.5, the 3 closest of each strategy
                       phase B: 0.5 z(similarity) + 0.5 z(Q), the best 6
    reward(ids, r)     Q += 0.3 (r - Q)

SECURITY: intents and records of runs contain text of users and models. They are cut and stored as
data; agent/memory/learner quotes them in prompts. A namespace sees only its own items.
"""

from __future__ import annotations

import contextlib
import math
import random
import re
import sqlite3
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.agent.memory.vectors import intent_embedder, pack, similarities
from atoll.errors import ConfigError, MemoryStoreError
from atoll.policy import check_positive
from atoll.state import sqlite_file

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence

    from atoll.agent.memory.vectors import Embedder


APPLICATION_ID = 0x41544C4D
"""Marks our files, so that another program's database is never written to."""
VERSION = 2
BUSY_SECONDS = 5.0
MAX_BYTES = 256 << 20
PAGE_BYTES = 4096
_SCHEMA = """
CREATE TABLE items (
    id INTEGER PRIMARY KEY, namespace TEXT NOT NULL, intent TEXT NOT NULL, embedder TEXT NOT NULL,
    vector BLOB NOT NULL, strategy TEXT NOT NULL, done TEXT NOT NULL, outcome TEXT NOT NULL,
    q REAL NOT NULL, tokens INTEGER NOT NULL, context_tokens INTEGER NOT NULL,
    runs INTEGER NOT NULL, created REAL NOT NULL, used REAL NOT NULL,
    efficiency REAL NOT NULL DEFAULT 0
)
"""
_FROM_1 = "ALTER TABLE items ADD COLUMN efficiency REAL NOT NULL DEFAULT 0"
_INDEX = "CREATE INDEX by_use ON items (namespace, used)"


class Database:
    """One file, created by the first operation, also if that only reads."""

    def __init__(
        self, path: str | os.PathLike[str], busy_seconds: float, max_bytes: int = MAX_BYTES
    ) -> None:
        self.path = Path(path).expanduser().absolute()
        self._busy, self._max_pages = busy_seconds, max(16, max_bytes // PAGE_BYTES)

    @contextlib.contextmanager
    def transaction(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        """Yield a connection inside a transaction, which an exception undoes."""
        try:
            db = sqlite_file.open_file(self.path, busy_seconds=self._busy)
            with contextlib.closing(db):
                db.execute("PRAGMA trusted_schema = OFF")
                db.execute(f"PRAGMA max_page_count = {self._max_pages}")
                self._identify(db)
                db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                try:
                    yield db
                except BaseException:
                    with contextlib.suppress(sqlite3.Error):
                        db.execute("ROLLBACK")
                    raise
                db.execute("COMMIT")
        except sqlite3.Error as exc:
            raise MemoryStoreError(f"the memory {self.path}: {sqlite_file.reason(exc)}") from exc
        except OSError as exc:
            raise MemoryStoreError(f"the memory {self.path}: {exc.strerror or exc}") from exc

    def _identify(self, db: sqlite3.Connection) -> None:
        """Check that the file is ours; make the tables if it is empty."""
        if _is_empty(db):
            with contextlib.suppress(sqlite3.OperationalError):  # another process is creating it
                db.execute("PRAGMA journal_mode = WAL")
            db.execute("BEGIN IMMEDIATE")
            if _is_empty(db):
                _create(db)
            db.execute("COMMIT")
        application, version = _mark(db)
        if application != APPLICATION_ID:
            raise MemoryStoreError(f"{self.path} is another program's database: name another file")
        if version > VERSION:
            raise MemoryStoreError(f"{self.path} is of a newer Atoll (format {version})")
        if version < VERSION:
            _upgrade(db)
        db.execute("PRAGMA synchronous = NORMAL")


def _create(db: sqlite3.Connection) -> None:
    db.execute(_SCHEMA)
    db.execute(_INDEX)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {VERSION}")


def _upgrade(db: sqlite3.Connection) -> None:
    """Bring the tables of an older Atoll up to date, unless another process just has."""
    db.execute("BEGIN IMMEDIATE")
    if _mark(db)[1] < VERSION:
        db.execute(_FROM_1)
        db.execute(f"PRAGMA user_version = {VERSION}")
    db.execute("COMMIT")


def _is_empty(db: sqlite3.Connection) -> bool:
    tables = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    return _mark(db) == (0, 0) and not tables


def _mark(db: sqlite3.Connection) -> tuple[int, int]:
    application = db.execute("PRAGMA application_id").fetchone()[0]
    return application, db.execute("PRAGMA user_version").fetchone()[0]


STRATEGIES = ("direct", "scan", "search", "delegated", "mixed")
RATE = 0.3
LEAST_SIMILARITY = 0.5
SAME_INTENT = 0.98
"""Similarity from which a run with the same strategy is merged into an existing item."""
PER_STRATEGY, RETRIEVED = 3, 6
Z_CLIP = 3.0
LONGEST_INTENT, LONGEST_DONE, LONGEST_OUTCOME = 500, 300, 40
MAX_ITEMS = 2_000
_NAMESPACE = re.compile(r"[\w.:/-]{1,100}")
_COLUMNS = (
    "id, intent, strategy, done, outcome, q, efficiency, tokens, context_tokens, runs, created, "
    "used"
)
_EXCESS = """
DELETE FROM items WHERE namespace = ? AND id IN (
    SELECT id FROM items WHERE namespace = ? ORDER BY used DESC, id DESC LIMIT -1 OFFSET ?
)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One earlier run, or several runs with the same question and strategy merged."""

    id: int
    intent: str
    """The question, cut."""
    strategy: str
    done: str
    """Which tools were called, how often."""
    outcome: str
    q: float
    """How well it went, from 0 to 1: a running mean in which recent outcomes weigh more."""
    efficiency: float = 0.0
    """Tokens of the answer for each token that looking for it took, of the last run."""
    tokens: int
    context_tokens: int
    runs: int
    created: float
    used: float

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieved:
    """The items of a memory that are similar to a question."""

    items: tuple[Item, ...]
    """The items of phase B, the best first."""
    runs: dict[str, int]
    """How many similar runs there were, by strategy."""
    closest: float = 0.0
    """The similarity of the closest item."""


class EpisodicMemory:
    """Items of one namespace in a SQLite file that many processes may share."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        namespace: str = "default",
        max_items: int = MAX_ITEMS,
        max_bytes: int = MAX_BYTES,
        epsilon: float = 0.05,
        seed: int | None = None,
        embedder: Embedder | None = None,
        busy_seconds: float = BUSY_SECONDS,
    ) -> None:
        """Take the path of a file, which is created on first use.

        The namespace keeps the `max_items` used last. `epsilon` is the share of runs that try
        another strategy than the best known; `seed` makes that choice repeatable.
        """
        check_positive("max_items", max_items)
        check_positive("busy_seconds", busy_seconds)
        check_positive("max_bytes", max_bytes)
        if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace):
            raise ConfigError(
                f"a namespace has 1 to 100 letters, digits or ._:/- and not {namespace!r:.60}"
            )
        if not 0 <= epsilon <= 1:
            raise ConfigError(f"epsilon must be from 0 to 1, not {epsilon!r}")
        self.namespace, self.epsilon = namespace, epsilon
        self.random = random.Random(seed)  # noqa: S311 - a choice of strategy, no secret
        self._max_items = max_items
        self._database = Database(path, busy_seconds, max_bytes)
        if not (folder := self._database.path.parent).is_dir():
            raise ConfigError(f"the folder of the memory {folder} does not exist: create it first")
        self._embedder = embedder

    @property
    def path(self) -> str:
        """The file."""
        return str(self._database.path)

    def add(
        self,
        intent: str,
        strategy: str,
        *,
        done: str = "",
        outcome: str = "",
        q: float = 0.5,
        tokens: int = 0,
        context_tokens: int = 0,
        efficiency: float = 0.0,
    ) -> int:
        """Record a run and return its item's id; merge it into a similar item if there is one."""
        if strategy not in STRATEGIES:
            raise ConfigError(f"no strategy {strategy!r}: use one of {', '.join(STRATEGIES)}")
        kept, vector = cut(intent, LONGEST_INTENT), pack(self._embed(intent))
        facts = (cut(done, LONGEST_DONE), cut(outcome, LONGEST_OUTCOME))
        sizes, now = (int(tokens), int(context_tokens), _number(efficiency)), time.time()
        with self._database.transaction(write=True) as db:
            if (old := self._same(db, vector, strategy)) is not None:
                _merge(db, old, facts, q, sizes)
                return old
            row = (self.namespace, kept, self.embedder.name, vector, strategy, *facts, _share(q))
            added = db.execute(
                "INSERT INTO items (namespace, intent, embedder, vector, strategy, done, outcome, "
                "q, tokens, context_tokens, efficiency, runs, created, used) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?)",
                (*row, *sizes, now, now),
            )
            db.execute(_EXCESS, (self.namespace, self.namespace, self._max_items))
            return int(added.lastrowid or 0)

    def similar(self, intent: str, *, most: int = 10) -> list[tuple[float, Item]]:
        """Return the closest items with their similarity, from 0.5 on, best first."""
        return self._similar(intent)[:most]

    def retrieve(self, intent: str, strategies: Iterable[str] = STRATEGIES) -> Retrieved:
        """Return the best items for a question, by similarity and Q together."""
        wanted = tuple(strategies)
        close = [(sim, item) for sim, item in self._similar(intent) if item.strategy in wanted]
        runs = {
            name: sum(item.runs for _, item in close if item.strategy == name) for name in wanted
        }
        candidates = [
            pair
            for name in wanted
            for pair in [pair for pair in close if pair[1].strategy == name][:PER_STRATEGY]
        ]
        closest = close[0][0] if close else 0.0
        return Retrieved(items=tuple(fused(candidates)[:RETRIEVED]), runs=runs, closest=closest)

    def reward(self, ids: Iterable[int], reward: float) -> None:
        """Move the Q of items towards a reward from 0 to 1: Q += 0.3 (reward - Q)."""
        self._change(ids, "q + ? * (? - q)", (RATE, _share(reward)))

    def adjust(self, ids: Iterable[int], change: float) -> None:
        """Add a change to the Q of items, to correct a reward that was given too early."""
        self._change(ids, "min(1.0, max(0.0, q + ?))", (change,))

    def items(self) -> list[Item]:
        """Return all items, the last used first."""
        query = f"SELECT {_COLUMNS} FROM items WHERE namespace = ? ORDER BY used DESC, id DESC"  # noqa: S608
        with self._database.transaction() as db:
            return [_item(row) for row in db.execute(query, (self.namespace,))]

    def get(self, item_id: int) -> Item | None:
        """Return an item, if there is one of this id in the namespace."""
        query = f"SELECT {_COLUMNS} FROM items WHERE namespace = ? AND id = ?"  # noqa: S608
        with self._database.transaction() as db:
            row = db.execute(query, (self.namespace, item_id)).fetchone()
        return None if row is None else _item(row)

    def export(self) -> Iterator[dict[str, object]]:
        """Yield all items as plain data, for a file of JSON lines."""
        for item in self.items():
            yield {"namespace": self.namespace, **item.to_dict()}

    def forget(self, ids: Iterable[int] | None = None) -> int:
        """Delete items, or without ids the whole namespace; return how many there were."""
        with self._database.transaction(write=True) as db:
            db.execute("PRAGMA secure_delete = ON")
            if ids is None:
                query = "DELETE FROM items WHERE namespace = ?"
                return db.execute(query, (self.namespace,)).rowcount
            query = "DELETE FROM items WHERE namespace = ? AND id = ?"
            return sum(db.execute(query, (self.namespace, number)).rowcount for number in ids)

    def namespaces(self) -> dict[str, int]:
        """Return all namespaces of the file with their numbers of items."""
        query = "SELECT namespace, count(*) FROM items GROUP BY namespace ORDER BY namespace"
        with self._database.transaction() as db:
            return {str(name): int(number) for name, number in db.execute(query)}

    @property
    def embedder(self) -> Embedder:
        """The given embedder, else the embedded encoder, else hashed words."""
        if self._embedder is None:
            self._embedder = intent_embedder()
        return self._embedder

    def _embed(self, intent: str) -> Sequence[float]:
        return self.embedder.embed(cut(intent, LONGEST_INTENT))

    def _similar(self, intent: str) -> list[tuple[float, Item]]:
        """Return all items of at least LEAST_SIMILARITY whose vectors have the same embedder."""
        vector = self._embed(intent)
        query = f"SELECT vector, {_COLUMNS} FROM items WHERE namespace = ? AND embedder = ?"  # noqa: S608
        with self._database.transaction() as db:
            rows = db.execute(query, (self.namespace, self.embedder.name)).fetchall()
        rows = [row for row in rows if len(row[0]) == 4 * len(vector)]
        scores = similarities(vector, [row[0] for row in rows]) if rows else []
        near = [
            (score, _item(row[1:]))
            for score, row in zip(scores, rows, strict=True)
            if score >= LEAST_SIMILARITY
        ]
        return sorted(near, key=lambda pair: (-pair[0], -pair[1].id))

    def _same(self, db: sqlite3.Connection, vector: bytes, strategy: str) -> int | None:
        query = "SELECT vector, id FROM items WHERE namespace = ? AND embedder = ? AND strategy = ?"
        rows = db.execute(query, (self.namespace, self.embedder.name, strategy)).fetchall()
        rows = [row for row in rows if len(row[0]) == len(vector)]
        if not rows:
            return None
        scores = similarities(memoryview(vector).cast("f"), [row[0] for row in rows])
        score, result = max(zip(scores, (row[1] for row in rows), strict=True))
        return int(result) if score >= SAME_INTENT else None

    def _change(self, ids: Iterable[int], value: str, parameters: tuple[float, ...]) -> None:
        query = f"UPDATE items SET q = {value}, used = ? WHERE namespace = ? AND id = ?"  # noqa: S608
        with self._database.transaction(write=True) as db:
            for ident in dict.fromkeys(ids):
                db.execute(query, (*parameters, time.time(), self.namespace, ident))


def fused(candidates: Sequence[tuple[float, Item]]) -> list[Item]:
    """Return items by 0.5 z(similarity) + 0.5 z(Q), each clipped at 3, the best first."""
    similarity = _z_scores([sim for sim, _ in candidates])
    quality = _z_scores([item.q for _, item in candidates])
    scores = [0.5 * sim + 0.5 * q for sim, q in zip(similarity, quality, strict=True)]
    ranked = sorted(zip(scores, candidates, strict=True), key=lambda pair: -pair[0])
    return [item for _, (_, item) in ranked]


def cut(text: str, most: int) -> str:
    """Return a text as one line of at most `most` characters, without control characters."""
    line = " ".join(text[: 8 * most].split())
    plain = "".join(char for char in line if char.isprintable())
    return plain if len(plain) <= most else plain[: most - 1] + "…"


def _merge(
    db: sqlite3.Connection,
    old: int,
    facts: tuple[str, str],
    q: float,
    sizes: tuple[int, int, float],
) -> None:
    db.execute(
        "UPDATE items SET q = q + ? * (? - q), done = ?, outcome = ?, tokens = "
        "(tokens * min(runs, 4) + ?) / (min(runs, 4) + 1), context_tokens = ?, efficiency = ?, "
        "runs = runs + 1, used = ? WHERE id = ?",
        (RATE, _share(q), *facts, *sizes, time.time(), old),
    )


def _item(row: Sequence[Any]) -> Item:
    """Return a row as an item, validated: the file may have been edited by hand."""
    number, intent, strategy, done, outcome, q, efficiency, *counts, created, used = row
    tokens, context_tokens, runs = (int(_number(count)) for count in counts)
    return Item(
        id=int(number),
        intent=cut(str(intent), LONGEST_INTENT),
        strategy=str(strategy) if strategy in STRATEGIES else "mixed",
        done=cut(str(done), LONGEST_DONE),
        outcome=cut(str(outcome), LONGEST_OUTCOME),
        q=_share(q),
        efficiency=_number(efficiency),
        tokens=tokens,
        context_tokens=context_tokens,
        runs=runs,
        created=_number(created),
        used=_number(used),
    )


def _share(value: Any) -> float:
    return min(1.0, _number(value))


def _number(value: Any) -> float:
    """Return a number from 0 on; 0 for anything else."""
    known = isinstance(value, (int, float)) and math.isfinite(value)
    return max(0.0, float(value)) if known else 0.0


def _z_scores(values: Sequence[float]) -> list[float]:
    if not values:
        return []
    mean, spread = statistics.fmean(values), statistics.pstdev(values)
    if spread < 1e-9:
        return [0.0] * len(values)
    return [min(Z_CLIP, max(-Z_CLIP, (value - mean) / spread)) for value in values]
