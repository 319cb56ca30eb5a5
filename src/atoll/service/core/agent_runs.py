"""Runs of agents: their trajectories in files, what is known of each, and news for who watches.

A run is started here, or reported by a program that runs elsewhere. Its file has one event a
line, only grows, and is read by line numbers, so a reader that comes back misses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from atoll.agent.trajectory import events as kinds
from atoll.agent.trajectory import read
from atoll.agent.trajectory.codec import from_dict, to_dict
from atoll.service import clock
from atoll.service.core.executions import KEEPALIVE
from atoll.service.http.problems import Problem, encode, not_found
from atoll.service.http.requests import check_structure
from atoll.service.ids import new_id

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import AsyncIterator
    from pathlib import Path

    from atoll.agent.trajectory import Node
    from atoll.service.access.keys import Principal
    from atoll.service.core.executions import Event
    from atoll.service.storage.database import Ledger
    from atoll.service.storage.stored import Reservation, StoredBytes

MOST_LINES = 200_000
MOST_BYTES = 256 << 20
READ_LINES = 500
READ_BYTES = 1 << 20
"""After so many bytes a reader gets what there is."""
TREE_EVENTS = 20_000
"""Events that a tree is made of; the rest is left out."""
SAVE_SECONDS = 2.0
MOST_FACT_BYTES = 256 << 10
"""Of each fact about a run that is kept beside its file: the question, the answer, the evidence."""
MOST_RUNNING = 16
KEPT_SECONDS = 30 * 86_400
_LISTED = ("answer", "evidence", "coverage", "budget")
"""What a list of runs leaves out."""


class AgentRun:
    """One run: its file, and the facts that its events have told."""

    def __init__(self, ident: str, tenant: str, path: Path, created: float) -> None:
        self.id, self.tenant, self.path, self.created = ident, tenant, path, created
        self.ended: float | None = None
        self.lines = self.size = 0
        self.facts: dict[str, Any] = {"turns": 0, "calls": 0, "usd": 0.0}
        self.task: asyncio.Task[Any] | None = None
        self.room: Reservation | None = None
        """For its file, while it runs."""
        self._saved = 0.0
        self._news = asyncio.Event()

    @classmethod
    def of_row(cls, row: sqlite3.Row, path: Path) -> AgentRun:
        """Return a run of the ledger."""
        run = cls(row["id"], row["tenant"], path, row["created"])
        run.ended, run.facts = row["ended"], json.loads(row["facts"])
        return run

    def describe(self, *, listed: bool = False) -> dict[str, Any]:
        """Return what its tenant may know; the answer and its evidence not in a list."""
        facts = {name: one for name, one in self.facts.items() if not (listed and name in _LISTED)}
        state = "running" if self.ended is None else "ended"
        times = {"created_at": self.created, "ended_at": self.ended}
        return {"id": self.id, "state": state, **times, "events": self.lines or None, **facts}

    def note(self, event: kinds.Event) -> None:
        """Take the facts of an event, which is in the file, and wake the readers."""
        self.lines += 1
        facts = self.facts
        if isinstance(event, kinds.RunStarted):
            self._take(event, "question", "model", "sub_model", "context", "budget")
        elif isinstance(event, kinds.CodeRan):
            facts["turns"] += event.parent is None
        elif isinstance(event, kinds.ModelAnswered):
            facts["calls"] += 1
            facts["usd"] = round(facts["usd"] + (event.usd or 0.0), 9)
        elif isinstance(event, kinds.FinalGiven) and event.parent is None:
            self._take(event, "evidence", "coverage", "how", "reason")
            facts["answer"] = bounded(event.text)
        elif isinstance(event, kinds.RunEnded) and event.parent is None:
            self._take(event, "outcome", "usd", "calls", "seconds", "error")
            facts["usage"] = msgspec.to_builtins(event.usage)
        self.wake()

    def _take(self, event: kinds.Event, *names: str) -> None:
        self.facts.update({name: bounded(getattr(event, name)) for name in names})

    def reserve(self, size: int) -> None:
        """Reserve room on disk for events that are about to be written; 403 if there is none."""
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
            found = await asyncio.to_thread(_read_events, self.path, offset, number, after)
            if found.lines:
                offset, number = found.offset, number + found.lines
                if found.events:
                    yield found.events
            elif ended:
                yield [(0, "end", encode({"type": "end", "run": self.describe(listed=True)}))]
                return
            else:
                try:
                    await asyncio.wait_for(news.wait(), pause)
                except TimeoutError:
                    yield [(0, "keepalive", KEEPALIVE)]

    async def tree(self) -> bytes:
        """Return the turns and calls as a tree, with what each cost, as JSON."""
        return await asyncio.to_thread(_tree, self.path)

    def due(self) -> bool:
        """Whether its facts should be written now, as some time has passed."""
        now = time.monotonic()
        due = now - self._saved > SAVE_SECONDS
        self._saved = now if due else self._saved
        return due


class Runs:
    """The runs of all tenants."""

    def __init__(self, folder: Path, ledger: Ledger, stored: StoredBytes) -> None:
        self._folder, self._ledger, self._stored = folder / "runs", ledger, stored
        self._folder.mkdir(exist_ok=True)
        self._running: dict[str, AgentRun] = {}

    @property
    def running(self) -> int:
        """How many have not ended."""
        return len(self._running)

    def start(self) -> None:
        """End the runs that an earlier process left."""
        for row in self._ledger.all("SELECT * FROM runs WHERE ended IS NULL"):
            run = AgentRun.of_row(row, self._path(row["id"]))
            run.facts["outcome"] = "lost"
            self._save(run, clock.now())
            self._note_size(run)

    def draft(self, principal: Principal, **facts: Any) -> AgentRun:
        """Return a run that is about to begin; 403 if the tenant may not store any more."""
        ident = new_id("run")
        run = AgentRun(ident, principal.tenant, self._path(ident), clock.now())
        run.room = self._stored.reserve(principal)
        run.room.grow(1)
        run.facts.update({name: bounded(one) for name, one in facts.items()})
        return run

    def begin(self, run: AgentRun) -> AgentRun:
        """Begin a run; 429 if the tenant has too many."""
        if sum(one.tenant == run.tenant for one in self._running.values()) >= MOST_RUNNING:
            text = f"{MOST_RUNNING} runs are under way: wait for one to end"
            raise Problem(429, "rate_limited", text, retry_after=5)
        run.path.touch(0o600)
        row = (run.id, run.tenant, run.created, json.dumps(run.facts))
        self._ledger.write("INSERT INTO runs VALUES (?, ?, ?, NULL, ?)", *row)
        self._running[run.id] = run
        return run

    def discard(self, run: AgentRun) -> None:
        """Forget a run that did not begin."""
        if run.room is not None:
            run.room.release()
        run.path.unlink(missing_ok=True)

    def told(self, run: AgentRun, event: kinds.Event) -> None:
        """Take an event that the run's own writer has put into its file."""
        run.note(event)
        if run.due():
            self._save(run, None)

    def append(self, run: AgentRun, lines: list[bytes]) -> None:
        """Take events that a program elsewhere has sent; what is none is kept as unknown."""
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
        encoded = [
            json.dumps(to_dict(one), separators=(",", ":")).encode() + b"\n" for one in taken
        ]
        run.size += sum(map(len, encoded))
        if run.lines + len(taken) > MOST_LINES or run.size > MOST_BYTES:
            most = f"{MOST_LINES:,} events and {MOST_BYTES:,} bytes"
            raise Problem(413, "too_large", f"a run has at most {most}")
        run.reserve(sum(map(len, encoded)))
        with run.path.open("ab") as file:
            file.write(b"".join(encoded))
        for event in taken:
            self.told(run, event)

    def end(self, run: AgentRun, outcome: str = "") -> None:
        """Note that nothing more will happen."""
        if run.ended is not None:
            return
        if outcome and "outcome" not in run.facts:
            run.facts["outcome"] = outcome
        self._running.pop(run.id, None)
        with contextlib.suppress(Exception):  # a full disk must not keep it running
            self._save(run, clock.now())
            self._note_size(run)
        if run.room is not None:
            run.room.release()
        run.ended = run.ended or clock.now()
        run.wake()

    def get(self, principal: Principal, ident: str) -> AgentRun:
        """Return a run of the tenant; 404 if it has no such one."""
        if (run := self._running.get(ident)) is not None and run.tenant == principal.tenant:
            return run
        query = "SELECT * FROM runs WHERE id = ? AND tenant = ?"
        row = self._ledger.one(query, ident, principal.tenant)
        if row is None:
            raise not_found("run")
        return AgentRun.of_row(row, self._path(row["id"]))

    def page(self, principal: Principal, limit: int, before: str) -> dict[str, Any]:
        """Return some runs of the tenant, newest first, and where the next page begins."""
        limit = max(1, min(limit, 200))
        query = (
            "SELECT * FROM runs WHERE tenant = ? AND (? = '' OR (created, id) <"
            " (SELECT created, id FROM runs WHERE id = ? AND tenant = ?))"
            " ORDER BY created DESC, id DESC LIMIT ?"
        )
        own = principal.tenant
        rows = self._ledger.all(query, own, before, before, own, limit + 1)
        shown = [
            self._running.get(row["id"]) or AgentRun.of_row(row, self._path(row["id"]))
            for row in rows[:limit]
        ]
        items = [one.describe(listed=True) for one in shown]
        return {"items": items, "next_cursor": shown[-1].id if len(rows) > limit else None}

    def delete(self, principal: Principal, ident: str) -> None:
        """Forget a run that has ended; 409 while it runs."""
        run = self.get(principal, ident)
        if run.ended is None:
            raise Problem(409, "running", "the run has not ended: cancel it first")
        self._forget(run.id)

    def sweep(self) -> None:
        """Delete runs that ended long ago."""
        old = clock.now() - KEPT_SECONDS
        for row in self._ledger.all("SELECT id FROM runs WHERE ended < ?", old):
            self._forget(row["id"])

    def stop(self) -> None:
        """End every run, as the service is about to stop."""
        for run in list(self._running.values()):
            if run.task is not None:
                run.task.cancel()
            self.end(run, "cancelled")

    def _save(self, run: AgentRun, ended: float | None) -> None:
        facts = json.dumps(msgspec.to_builtins(run.facts))
        self._ledger.write(
            "UPDATE runs SET ended = ?, facts = ? WHERE id = ?", ended, facts, run.id
        )
        run.ended = ended

    def _note_size(self, run: AgentRun) -> None:
        """Count what a run's file takes for its tenant, until the run is forgotten."""
        with contextlib.suppress(FileNotFoundError):
            row = (run.id, run.tenant, run.path.stat().st_size)
            self._ledger.write("INSERT OR REPLACE INTO run_sizes VALUES (?, ?, ?)", *row)

    def _forget(self, ident: str) -> None:
        for table in ("runs", "run_sizes"):
            self._ledger.write(f"DELETE FROM {table} WHERE id = ?", ident)  # noqa: S608 - our own
        self._path(ident).unlink(missing_ok=True)

    def _path(self, ident: str) -> Path:
        return self._folder / f"{ident}.jsonl"


def bounded(fact: Any) -> Any:
    """Return a fact as it is, a long text cut, and None for another that is large."""
    if isinstance(fact, str):
        return fact[:MOST_FACT_BYTES]
    return fact if len(msgspec.json.encode(fact)) <= MOST_FACT_BYTES else None


def node_json(node: Node) -> dict[str, Any]:
    """Return a node of a run's tree as JSON."""
    totals = node.totals
    return {
        "id": node.event.id,
        "event": to_dict(node.event),
        "end": None if node.end is None else to_dict(node.end),
        "totals": {
            "usd": totals.usd,
            "calls": totals.calls,
            "unpriced": totals.unpriced,
            "usage": msgspec.to_builtins(totals.usage),
        },
        "start_ms": node.start_ms,
        "end_ms": node.end_ms,
        "children": [node_json(one) for one in node.children],
    }


def _tree(path: Path) -> bytes:
    found = read(path, events_cap=TREE_EVENTS)
    return encode({"nodes": [node_json(one) for one in found.tree()], "truncated": found.cut})


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
