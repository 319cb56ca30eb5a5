"""Runs of agents: their trajectories in files, what is known of each, and news for who watches.

A run is started here, or reported by a program that runs elsewhere. Its file has one event a
line, only grows, and is read by line numbers, so a reader that comes back misses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Struct, UnsetType

from atoll.agent.trajectory import events as kinds
from atoll.agent.trajectory import read
from atoll.agent.trajectory.events import Usage, from_dict, to_dict
from atoll.service import clock
from atoll.service.http.problems import Problem, encode, not_found
from atoll.service.http.requests import check_structure
from atoll.service.http.streams import KEEPALIVE, event
from atoll.service.ids import new_id

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import AsyncIterator
    from pathlib import Path

    from atoll.agent.trajectory import Node
    from atoll.service.access.keys import Principal
    from atoll.service.http.streams import Event
    from atoll.service.storage.database import Database
    from atoll.service.storage.stored import Reservation, StoredBytes

MAX_LINES = 200_000
MAX_BYTES = 256 << 20
READ_LINES = 500
READ_BYTES = 1 << 20
"""After so many bytes a reader gets what there is."""
TREE_EVENTS = 20_000
"""Events that a tree is made of; the rest is left out."""
SAVE_SECONDS = 2.0
MAX_FACT_BYTES = 256 << 10
"""Of each fact about a run that is kept beside its file: the question, the answer, the evidence."""
MAX_RUNNING = 16
KEPT_SECONDS = 30 * 86_400
_LISTED = dict.fromkeys(("answer", "evidence", "coverage", "budget"), UNSET)
"""What a list of runs leaves out."""
Data = dict[str, Any]


class RunFacts(Struct, kw_only=True):
    """What the events of a run say of it."""

    turns: int = 0
    calls: int = 0
    usd: float | None = 0.0
    question: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    sub_model: str | UnsetType = UNSET
    context: Data | UnsetType | None = UNSET
    budget: Data | UnsetType | None = UNSET
    evidence: list[Data] | UnsetType | None = UNSET
    coverage: Data | UnsetType | None = UNSET
    how: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    answer: str | UnsetType = UNSET
    outcome: str | UnsetType = UNSET
    seconds: float | UnsetType = UNSET
    error: str | UnsetType | None = UNSET
    usage: Usage | UnsetType = UNSET


class RunInfo(RunFacts, kw_only=True):
    """A run as its tenant sees it; in a list without the answer, the evidence and the like."""

    id: str
    state: Literal["running", "ended"]
    created_at: float
    ended_at: float | None
    events: int | None
    """How many there are, as far as this process has seen them."""


class RunPage(Struct):
    """Some runs, newest first, and where the next page begins."""

    items: list[RunInfo]
    next_cursor: str | None


class RunTotals(Struct):
    """What a turn or call, with all beneath it, cost."""

    usd: float
    calls: int
    unpriced: int
    usage: Usage


class RunNode(Struct, kw_only=True):
    """A turn or call of a run: its event, the event that ends it, and its children."""

    id: str
    event: Data
    end: Data | None
    totals: RunTotals
    start_ms: float | None
    end_ms: float | None
    children: list[RunNode]


class RunTree(Struct):
    """The turns and calls of a run as a tree."""

    nodes: list[RunNode]
    truncated: bool


class AgentRun:
    """One run: its file, and the facts that its events say."""

    def __init__(self, ident: str, tenant: str, path: Path, created: float) -> None:
        self.id, self.tenant, self.path, self.created = ident, tenant, path, created
        self.ended: float | None = None
        self.lines = self.size = 0
        self.facts = RunFacts()
        self.task: asyncio.Task[Any] | None = None
        self.room: Reservation | None = None
        """For its file, while it runs."""
        self._saved = 0.0
        self._news = asyncio.Event()

    @classmethod
    def of_row(cls, row: sqlite3.Row, path: Path) -> AgentRun:
        """Return a run of the database."""
        run = cls(row["id"], row["tenant"], path, row["created"])
        run.ended, run.facts = row["ended"], msgspec.convert(json.loads(row["facts"]), RunFacts)
        return run

    def describe(self, *, listed: bool = False) -> RunInfo:
        """Return what its tenant may know; the answer and its evidence not in a list."""
        facts = msgspec.structs.asdict(self.facts) | (_LISTED if listed else {})
        return RunInfo(
            **facts,
            id=self.id,
            state="running" if self.ended is None else "ended",
            created_at=self.created,
            ended_at=self.ended,
            events=self.lines or None,
        )

    def note(self, event: kinds.Event) -> None:
        """Take the facts of an event, which is in the file, and wake the readers."""
        self.lines += 1
        facts = self.facts
        if isinstance(event, kinds.RunStarted):
            self._take(event, "question", "model", "sub_model", "context", "budget")
        elif isinstance(event, kinds.CodeRan):
            facts.turns += event.parent is None
        elif isinstance(event, kinds.ModelAnswered):
            facts.calls += 1
            facts.usd = round((facts.usd or 0.0) + (event.usd or 0.0), 9)
        elif isinstance(event, kinds.FinalGiven) and event.parent is None:
            self._take(event, "evidence", "coverage", "how", "reason")
            facts.answer = bounded(event.text)
        elif isinstance(event, kinds.RunEnded) and event.parent is None:
            self._take(event, "outcome", "usd", "calls", "seconds", "error")
            facts.usage = event.usage
        self.wake()

    def _take(self, event: kinds.Event, *names: str) -> None:
        for name in names:
            setattr(self.facts, name, bounded(getattr(event, name)))

    def reserve(self, size: int) -> None:
        """Reserve room on disk for events that are about to be written; 403 without room."""
        if self.room is not None:
            self.room.grow(size)

    def wake(self) -> None:
        """Tell readers that there is more to read, or that it has ended."""
        self._news.set()
        self._news = asyncio.Event()

    async def events(self, after: int, pause: float) -> AsyncIterator[list[Event]]:
        """Yield the events after a line, as many at a time as there are, until the run ends."""
        offset, number = 0, 0
        while True:
            news, ended = self._news, self.ended is not None
            read_now = await asyncio.to_thread(_read_events, self.path, offset, number, after)
            if read_now.lines:
                offset, number = read_now.offset, number + read_now.lines
                if read_now.events:
                    yield read_now.events
            elif ended:
                yield [event("end", run=self.describe(listed=True))]
                return
            else:
                try:
                    await asyncio.wait_for(news.wait(), pause)
                except TimeoutError:
                    yield [KEEPALIVE]

    async def tree(self) -> bytes:
        """Return the turns and calls as a tree with costs, as JSON."""
        return await asyncio.to_thread(_tree, self.path)

    def due(self) -> bool:
        """Whether its facts should be written now, as some time has passed."""
        now = time.monotonic()
        due = now - self._saved > SAVE_SECONDS
        self._saved = now if due else self._saved
        return due


class Runs:
    """The runs of all tenants."""

    def __init__(self, folder: Path, database: Database, stored: StoredBytes) -> None:
        self._folder, self._database, self._stored = folder / "runs", database, stored
        self._folder.mkdir(exist_ok=True)
        self._running: dict[str, AgentRun] = {}

    @property
    def running(self) -> int:
        """How many have not ended."""
        return len(self._running)

    def start(self) -> None:
        """End the runs that an earlier process left."""
        for row in self._database.all("SELECT * FROM runs WHERE ended IS NULL"):
            run = AgentRun.of_row(row, self._path(row["id"]))
            run.facts.outcome = "lost"
            self._save(run, clock.now())
            self._note_size(run)

    def draft(self, principal: Principal, facts: RunFacts | None = None) -> AgentRun:
        """Return a run that is about to begin; 403 if the tenant may not store any more."""
        ident = new_id("run")
        run = AgentRun(ident, principal.tenant, self._path(ident), clock.now())
        run.room = self._stored.reserve(principal)
        run.room.grow(1)
        run.facts = facts or run.facts
        return run

    def begin(self, run: AgentRun) -> AgentRun:
        """Begin a run; 429 if the tenant has too many."""
        if sum(other.tenant == run.tenant for other in self._running.values()) >= MAX_RUNNING:
            text = f"{MAX_RUNNING} runs are under way: wait for one to end"
            raise Problem(429, "rate_limited", text, retry_after=5)
        run.path.touch(0o600)
        row = (run.id, run.tenant, run.created, encode(run.facts).decode())
        self._database.write("INSERT INTO runs VALUES (?, ?, ?, NULL, ?)", *row)
        self._running[run.id] = run
        return run

    def discard(self, run: AgentRun) -> None:
        """Forget a run that did not begin."""
        if run.room is not None:
            run.room.release()
        run.path.unlink(missing_ok=True)

    def record(self, run: AgentRun, event: kinds.Event) -> None:
        """Take an event that the run's own writer has put into its file."""
        run.note(event)
        if run.due():
            self._save(run, None)

    def append(self, run: AgentRun, lines: list[bytes]) -> None:
        """Take events that a program elsewhere has sent; invalid ones become UnknownEvent."""
        taken = []
        for line in lines:
            check_structure(line)
            try:
                data = json.loads(line)
            except (ValueError, RecursionError):
                raise Problem(400, "invalid", "a line is not a JSON object") from None
            if not isinstance(data, dict):
                raise Problem(400, "invalid", "a line is not a JSON object")
            taken.append(from_dict(data))
        encoded = [json.dumps(to_dict(e), separators=(",", ":")).encode() + b"\n" for e in taken]
        run.size += sum(map(len, encoded))
        if run.lines + len(taken) > MAX_LINES or run.size > MAX_BYTES:
            most = f"{MAX_LINES:,} events and {MAX_BYTES:,} bytes"
            raise Problem(413, "too_large", f"a run has at most {most}")
        run.reserve(sum(map(len, encoded)))
        with run.path.open("ab") as file:
            file.write(b"".join(encoded))
        for taken_event in taken:
            self.record(run, taken_event)

    def end(self, run: AgentRun, outcome: str = "") -> None:
        """Note that nothing more will happen."""
        if run.ended is not None:
            return
        if outcome and run.facts.outcome is UNSET:
            run.facts.outcome = outcome
        self._running.pop(run.id, None)
        with contextlib.suppress(Exception):  # a full disk must not keep it running
            self._save(run, clock.now())
            self._note_size(run)
        if run.room is not None:
            run.room.release()
        run.ended = run.ended or clock.now()
        run.wake()

    def get(self, principal: Principal, ident: str) -> AgentRun:
        """Return a run of the tenant; 404 if it has none of that id."""
        if (run := self._running.get(ident)) is not None and run.tenant == principal.tenant:
            return run
        query = "SELECT * FROM runs WHERE id = ? AND tenant = ?"
        row = self._database.one(query, ident, principal.tenant)
        if row is None:
            raise not_found("run")
        return AgentRun.of_row(row, self._path(row["id"]))

    def page(self, principal: Principal, limit: int, before: str) -> RunPage:
        """Return some runs of the tenant, newest first, and where the next page begins."""
        limit = max(1, min(limit, 200))
        query = (
            "SELECT * FROM runs WHERE tenant = ? AND (? = '' OR (created, id) <"
            " (SELECT created, id FROM runs WHERE id = ? AND tenant = ?))"
            " ORDER BY created DESC, id DESC LIMIT ?"
        )
        own = principal.tenant
        rows = self._database.all(query, own, before, before, own, limit + 1)
        shown = [
            self._running.get(row["id"]) or AgentRun.of_row(row, self._path(row["id"]))
            for row in rows[:limit]
        ]
        items = [run.describe(listed=True) for run in shown]
        return RunPage(items, shown[-1].id if len(rows) > limit else None)

    def delete(self, principal: Principal, ident: str) -> None:
        """Forget a run that has ended; 409 while it runs."""
        run = self.get(principal, ident)
        if run.ended is None:
            raise Problem(409, "running", "the run has not ended: cancel it first")
        self._forget(run.id)

    def sweep(self) -> None:
        """Delete runs that ended long ago."""
        old = clock.now() - KEPT_SECONDS
        for row in self._database.all("SELECT id FROM runs WHERE ended < ?", old):
            self._forget(row["id"])

    def stop(self) -> None:
        """End every run, as the service is about to stop."""
        for run in list(self._running.values()):
            if run.task is not None:
                run.task.cancel()
            self.end(run, "cancelled")

    def _save(self, run: AgentRun, ended: float | None) -> None:
        facts = encode(run.facts).decode()
        query = "UPDATE runs SET ended = ?, facts = ? WHERE id = ?"
        self._database.write(query, ended, facts, run.id)
        run.ended = ended

    def _note_size(self, run: AgentRun) -> None:
        """Count what a run's file takes for its tenant, until the run is forgotten."""
        with contextlib.suppress(FileNotFoundError):
            row = (run.id, run.tenant, run.path.stat().st_size)
            self._database.write("INSERT OR REPLACE INTO run_sizes VALUES (?, ?, ?)", *row)

    def _forget(self, ident: str) -> None:
        for table in ("runs", "run_sizes"):
            self._database.write(f"DELETE FROM {table} WHERE id = ?", ident)  # noqa: S608 - our own
        self._path(ident).unlink(missing_ok=True)

    def _path(self, ident: str) -> Path:
        return self._folder / f"{ident}.jsonl"


def bounded(fact: Any) -> Any:
    """Return a fact; a long text is cut, and another large value becomes None."""
    if isinstance(fact, str):
        return fact[:MAX_FACT_BYTES]
    return fact if len(msgspec.json.encode(fact)) <= MAX_FACT_BYTES else None


def _node(node: Node) -> RunNode:
    totals = node.totals
    return RunNode(
        id=node.event.id,
        event=to_dict(node.event),
        end=None if node.end is None else to_dict(node.end),
        totals=RunTotals(totals.usd, totals.calls, totals.unpriced, totals.usage),
        start_ms=node.start_ms,
        end_ms=node.end_ms,
        children=list(map(_node, node.children)),
    )


def _tree(path: Path) -> bytes:
    whole = read(path, events_cap=TREE_EVENTS)
    return encode(RunTree(list(map(_node, whole.tree())), whole.cut))


class _Lines(NamedTuple):
    """Lines of a run's file, and those of them that a reader has not seen as events."""

    lines: int
    offset: int
    events: list[Event]


def _read_events(path: Path, offset: int, number: int, after: int) -> _Lines:
    """Read whole lines of a file from an offset on; `number` is that of the line before."""
    lines, begin, events = 0, offset, []
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(offset)
        while lines < READ_LINES and offset - begin < READ_BYTES:
            line = file.readline()
            if not line.endswith(b"\n"):
                break
            lines, offset = lines + 1, offset + len(line)
            if number + lines > after:
                events.append(_event(number + lines, line[:-1]))
    return _Lines(lines, offset, events)


def _event(number: int, line: bytes) -> Event:
    try:
        shown: Any = msgspec.Raw(line) if json.loads(line) is not None else None
    except ValueError:
        shown = None
    return number, "event", encode({"seq": number, "type": "event", "event": shown})
