"""Events as a tree: runs, turns and model calls in them, sub-calls in turns, with costs.

# SECURITY: the events may be forged. An unknown parent is replaced by the run, so there are no
# cycles, and no branch is deeper than DEPTH_CAP, so code that walks the tree may recurse.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

from atoll.agent.trajectory.events import (
    CodeRan,
    ModelAnswered,
    ModelAsked,
    RunEnded,
    RunStarted,
    SubcallEnded,
    SubcallStarted,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from atoll.agent.trajectory.events import Event

DEPTH_CAP = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Tokens, costs and number of model calls."""

    usage: Usage = field(default_factory=Usage)
    usd: float = 0.0
    calls: int = 0
    unpriced: int = 0
    """Calls of unknown price, which `usd` does not include."""

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            usage=self.usage + other.usage,
            usd=self.usd + other.usd,
            calls=self.calls + other.calls,
            unpriced=self.unpriced + other.unpriced,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """An event, or a call from its first event to its last, with its children."""

    event: Event
    end: Event | None = None
    """Its last event: ModelAnswered, SubcallEnded or RunEnded; None while it runs."""
    children: tuple[Node, ...] = ()
    totals: Totals
    """Of this node and all below it."""
    start_ms: float
    end_ms: float


def grow(events: Iterable[Event]) -> tuple[Node, ...]:
    """Return one node for each run, in the order of their first events."""
    runs: dict[str, _Run] = {}
    for event in events:
        if event.run not in runs:
            runs[event.run] = _Run(event)
        runs[event.run].add(event)
    return tuple(_finished(run.root) for run in runs.values())


@dataclass(slots=True)
class _Draft:
    event: Event
    level: int = 0
    end: Event | None = None
    children: list[_Draft] = field(default_factory=list)
    loose: list[_Draft] = field(default_factory=list)
    """Sub-calls of the code that runs now: CodeRan, the event of its turn, comes after them."""


class _Run:
    """Builds the nodes of a run from its events, in order."""

    def __init__(self, first: Event) -> None:
        self.root = _Draft(first)
        self._calls: dict[str, _Draft] = {}
        self._models: dict[str, _Draft] = {}

    def add(self, event: Event) -> None:
        """Add an event to its parent."""
        is_root = event is self.root.event and isinstance(event, RunStarted)
        if is_root or self._ends(event):
            return
        home = self._home(event)
        if isinstance(event, SubcallStarted):
            self._calls[event.call] = draft = _Draft(event, home.level + 2)
            home.loose.append(draft)
            return
        draft = _Draft(event, home.level + 1)
        home.children.append(draft)
        if isinstance(event, ModelAsked):
            self._models[event.call] = draft
        elif isinstance(event, CodeRan):
            draft.children, home.loose = home.loose, []

    def _ends(self, event: Event) -> bool:
        """Return whether the event ends a known node that has no end yet."""
        draft = None
        if isinstance(event, RunEnded) and event.parent is None:
            draft = self.root
        elif isinstance(event, SubcallEnded):
            draft = self._calls.get(event.call)
        elif isinstance(event, ModelAnswered):
            draft = self._models.get(event.call)
        if draft is None or draft.end is not None:
            return False
        draft.end = event
        return True

    def _home(self, event: Event) -> _Draft:
        parent = event.parent
        if parent is None and isinstance(event, (ModelAsked, ModelAnswered)):
            parent = event.call  # a model call that has the id of its sub-call
        home = self._calls.get(parent or "", self.root)
        return home if home.level + 2 <= DEPTH_CAP else self.root


def _finished(draft: _Draft) -> Node:
    children = tuple(map(_finished, draft.children + draft.loose))
    below = reduce(Totals.__add__, (child.totals for child in children), Totals())
    start, end = _span(draft, children)
    return Node(
        event=draft.event,
        end=draft.end,
        children=children,
        totals=_totals(draft, below),
        start_ms=start,
        end_ms=end,
    )


def _totals(draft: _Draft, below: Totals) -> Totals:
    """Return a call's totals: the larger of its own figures and the sum of its parts."""
    if isinstance(draft.event, SubcallStarted) and draft.event.shared_with is not None:
        return Totals()
    said = draft.end or draft.event
    if not isinstance(said, (ModelAnswered, SubcallEnded, RunEnded)):
        return below
    whole = Usage(
        input=max(said.usage.input, below.usage.input),
        output=max(said.usage.output, below.usage.output),
        cached=max(said.usage.cached, below.usage.cached),
    )
    calls = max(_calls(said), below.calls)
    unpriced = max(below.unpriced, int(said.usd is None and below.calls == 0 and calls > 0))
    return Totals(usage=whole, usd=max(said.usd or 0.0, below.usd), calls=calls, unpriced=unpriced)


def _calls(said: ModelAnswered | SubcallEnded | RunEnded) -> int:
    if isinstance(said, RunEnded):
        return said.calls
    refused = isinstance(said, SubcallEnded) and said.error is not None
    return 0 if refused and said.usage == Usage() else 1


def _span(draft: _Draft, children: tuple[Node, ...]) -> tuple[float, float]:
    at = draft.event.elapsed_ms
    if isinstance(draft.event, (CodeRan, ModelAnswered)):  # its event comes at its end
        return max(at - draft.event.duration_ms, 0.0), at
    latest = max((child.end_ms for child in children), default=at)
    return at, max(at, draft.end.elapsed_ms if draft.end else latest)
