"""The cells of a session, kept for readers who come later: what ran, and how it ended."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from atoll.service import clock
from atoll.service.core.work import MAX_KEPT_TEXT, Result, RunResult, ShellResult, Verb
from atoll.service.http.problems import decode, encode

if TYPE_CHECKING:
    from atoll.service.access.admission import Holding
    from atoll.service.core.executions import Execution

MAX_CELLS = 200
MAX_BYTES = 4 << 20
"""What the finished cells of one session may take in memory."""


@dataclass(slots=True, eq=False)
class Cell:
    """One cell or command. While it runs, its execution is asked; then only its result is kept."""

    number: int
    id: str
    verb: Verb
    code: str
    code_cut: bool
    created: float = field(default_factory=clock.now)
    ended: float = 0.0
    status: int = 0
    body: bytes = b""
    execution: Execution | None = None
    """What runs it; None after its end."""

    @classmethod
    def of(cls, number: int, execution: Execution, verb: Verb, text: str) -> Cell:
        """Return a cell that begins."""
        code = text[:MAX_KEPT_TEXT]
        return cls(number, execution.id, verb, code, len(text) > MAX_KEPT_TEXT, execution=execution)

    @property
    def size(self) -> int:
        """Bytes that it takes in memory, about."""
        return len(self.code) + len(self.body)

    def settle(self) -> bool:
        """Take the result over from an execution that has ended; return whether it has."""
        execution = self.execution
        if execution is not None and execution.done:
            self.status, self.ended = execution.status, execution.ended
            self.body, self.execution = self._shortened(execution.body), None
        return self.execution is None

    def _shortened(self, body: bytes) -> bytes:
        """Return a result whose texts are cut where they are long, and whose value is small."""
        if len(body) <= MAX_KEPT_TEXT or self.status >= 400:
            return body
        kind: type[Result] = ShellResult if self.verb is Verb.SHELL else RunResult
        result = decode(body, kind)
        result.cut()
        return encode(result)

    def describe(self) -> CellInfo:
        """Return what the session's tenant may know."""
        done = self.settle()
        body = msgspec.Raw(self.body) if done else None
        failed = self.status >= 400
        return CellInfo(
            n=self.number,
            id=self.id,
            verb=self.verb,
            code=self.code,
            code_truncated=self.code_cut,
            created_at=self.created,
            ended_at=self.ended or None,
            done=done,
            status=self.status or None,
            events=f"/api/v1/executions/{self.id}/events",
            result=None if failed else body,
            problem=body if failed else None,
        )


class CellInfo(msgspec.Struct, kw_only=True):
    """A cell or command of a session: its result, or why it is missing."""

    n: int
    id: str
    verb: Verb
    code: str
    code_truncated: bool
    created_at: float
    ended_at: float | None
    done: bool
    status: int | None
    events: str
    result: Any
    problem: Any


class CellPage(msgspec.Struct, kw_only=True):
    """Some cells of a session, oldest first."""

    items: list[CellInfo]
    next: int | None
    """The number that the next page begins after."""
    first: int
    """The number of the oldest cell that is kept."""
    begins_at: int
    """The number of the first cell that is not the parent's."""


class History:
    """The last cells of one session, oldest first. A fork begins with its parent's."""

    def __init__(self, parent: History | None = None) -> None:
        self.cells: deque[Cell] = deque() if parent is None else parent.cells.copy()
        self._open = [cell for cell in self.cells if not cell.settle()]
        self._size = sum(cell.size for cell in self.cells)
        self.begins_at = self._next = 1 if parent is None else parent.following
        """The number of the first cell that is the session's own."""
        self._held: Holding | None = None

    @property
    def following(self) -> int:
        """The number of the next cell."""
        return self._next

    def add(self, execution: Execution, verb: Verb, text: str) -> None:
        """Keep a cell that begins; forget the oldest ones if they are too many or too large."""
        before = sum(cell.size for cell in self._open)
        left = [cell for cell in self._open if not cell.settle()]
        self._size += sum(cell.size for cell in self._open) - before
        made = Cell.of(self._next, execution, verb, text)
        self.cells.append(made)
        self._open, self._size, self._next = [*left, made], self._size + made.size, self._next + 1
        while len(self.cells) > MAX_CELLS or (len(self.cells) > 1 and not self._fits()):
            self._size -= self._forget(self.cells.popleft())

    def hold(self, held: Holding) -> None:
        """Count the cells from now on with a holding of the session's tenant."""
        self._held = held
        while self.cells and not self._fits():
            self._size -= self._forget(self.cells.popleft())

    def release(self) -> None:
        """Stop counting the cells: the session has ended."""
        if self._held is not None:
            self._held.release()

    def _fits(self) -> bool:
        return self._size <= MAX_BYTES and (self._held is None or self._held.fits(self._size))

    def _forget(self, cell: Cell) -> int:
        """Return the size of a cell that is not kept any more."""
        if cell in self._open:
            self._open.remove(cell)
        return cell.size

    def to_bytes(self) -> bytes:
        """Return the cells that have ended, for `restore`."""
        cells = [_record(cell) for cell in self.cells if cell.settle()]
        return msgspec.json.encode([self.begins_at, self._next, cells])

    def restore(self, data: bytes) -> None:
        """Take the cells of an earlier process; ValueError, TypeError or KeyError if damaged."""
        begins_at, following, rows = msgspec.json.decode(data, type=tuple[int, int, list[Any]])
        self.cells = deque(
            Cell(**{**row, "body": str.encode(row["body"]), "verb": Verb(row["verb"])})
            for row in rows
        )
        self._size, self._open = sum(cell.size for cell in self.cells), []
        self.begins_at, self._next = begins_at, following

    def page(self, after: int, limit: int) -> CellPage:
        """Return cells after a number, and the number that the next page begins after."""
        left = [cell for cell in self.cells if cell.number > after]
        shown = left[:limit]
        return CellPage(
            items=[cell.describe() for cell in shown],
            next=shown[-1].number if len(left) > len(shown) else None,
            first=self.cells[0].number if self.cells else self._next,
            begins_at=self.begins_at,
        )


def _record(cell: Cell) -> dict[str, Any]:
    known = {name: getattr(cell, name) for name in Cell.__slots__ if name != "execution"}
    return {**known, "body": cell.body.decode()}
