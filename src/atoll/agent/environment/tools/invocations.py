"""The log of tool calls: which tool, by whom, with how much, how long it took, how it ended."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import re
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atoll.concurrency import forks
from atoll.text.tokens import estimate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


LONGEST_ARGUMENT = 500
LONGEST_RESULT = 700
"""More than is ever shown: a secret that is cut here is cut off whole when a node is shortened."""
MAX_ARGUMENTS = 12
COUNTED = 4_096
"""Characters of a result whose tokens are counted; of a longer one, in proportion."""
HASHED = 1 << 18
"""Characters of a result that its digest covers, beside its length."""
LARGEST_OWN = 1 << 40
"""Characters that guest code may say a result from its own files has."""
_EXCEPTION = re.compile(r"[A-Za-z]\w{0,60}")
MAX_ITEMS = 200
"""Items of a list that its text has: max_grep_results is 100."""


def arguments_of(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, object]:
    """Return what a function is called with, by the names of its parameters, cut.

    What equals its default is left out: `peek(n=100)`, not `peek(n=100, start=0)`.
    """
    try:
        signature = inspect.signature(function)
        given = signature.bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # wrong arguments, or a function without a signature
        given = {**dict(zip(map(str, range(len(args))), args, strict=True)), **kwargs}
        signature = inspect.Signature()
    kept: dict[str, object] = {}
    for name, value in given.items():
        known = signature.parameters.get(name)
        default = inspect.Parameter.empty if known is None else known.default
        plain = default is None or isinstance(default, (str, int, float))
        is_default = plain and type(value) is type(default) and value == default
        if not is_default and len(kept) < MAX_ARGUMENTS:
            kept[name] = _cut(value)
    return kept


def result_fields(answer: Any) -> dict[str, Any]:
    """Return the fields of an Invocation that tell of its result."""
    text = result_text(answer)
    tokens = estimate(text[:COUNTED])
    hashed = f"{len(text)}:{text[:HASHED]}".encode("utf-8", "surrogatepass")
    return {
        "found": text[:LONGEST_RESULT],
        "found_tokens": tokens * max(len(text), COUNTED) // COUNTED,
        "digest": hashlib.blake2b(hashed, digest_size=8).hexdigest(),
    }


def reported_fields(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same fields of what guest code says that it found in a file of its own."""
    if failed := report.get("failed"):
        return {"outcome": failed if _EXCEPTION.fullmatch(str(failed)) else "OSError"}
    text, size = str(report["text"])[:HASHED], max(0, min(int(report["size"]), LARGEST_OWN))
    result = result_fields(text)
    if size > len(text) > 0:
        result["found_tokens"] = result["found_tokens"] * size // len(text)
    return result


def result_text(answer: Any) -> str:
    """Return a result as text: of hits one a line, of anything that is not text as it prints."""
    if answer is None:
        return ""
    if isinstance(answer, str):
        return answer
    if isinstance(answer, dict):
        for name in ("text", "hits", "names", "members"):
            if answer.get(name) is not None:
                return result_text(answer[name])
        return _fields(answer)
    if isinstance(answer, (list, tuple)):
        return "\n".join(map(_item, answer[:MAX_ITEMS]))
    return repr(answer) if isinstance(answer, (int, float, bool)) else type(answer).__name__


def _item(value: Any) -> str:
    if isinstance(value, dict):
        return str(value["text"]) if "text" in value else _fields(value)
    return str(_cut(value))


def _fields(data: Mapping[Any, Any]) -> str:
    pairs = list(data.items())[:MAX_ARGUMENTS]
    return ", ".join(f"{_cut(name)}: {_cut(value)}" for name, value in pairs)


def _cut(value: Any) -> Any:
    """Return a number as it is, the beginning of a text, the type and length of anything else."""
    if isinstance(value, str):
        return value[:LONGEST_ARGUMENT]
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else "a large number"
    size = f" of {len(value)}" if hasattr(value, "__len__") else ""
    return f"{type(value).__name__}{size}"


KEPT = 10_000
"""Invocations that are kept; the counts are of all."""
MAX_AWAITED = 64
"""Calls whose results guest code may still report: as many as may run side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """One call of a tool."""

    tool: str
    caller_type: str = "code"
    """`code` of a cell, or a `chain`: a turn of structured mode with several calls."""
    chain_id: str | None = None
    """The chain that it belongs to, and its place in it, from 0."""
    chain_index: int | None = None
    parent: str = ""
    """The turn that made it."""
    sizes: Mapping[str, int]
    """Characters, bytes or items of each argument, by name or position."""
    duration_ms: float = 0.0
    tokens_in: int = 0
    """Of the prompt, about, if the tool asks a model."""
    tokens_out: int = 0
    outcome: str = "ok"
    """`ok`, or the name of the exception."""
    prefetched: bool = False
    """Whether the tool had run beside others before guest code asked for the result."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """What it was called with, by name: numbers, and the beginnings of texts."""
    found: str = ""
    """The beginning of its result."""
    found_tokens: int = 0
    """Of all that it returned, about."""
    digest: str = ""
    """Of all that it returned: two calls with the same result have the same digest."""

    def to_dict(self) -> dict[str, object]:
        """Return what a trajectory keeps of a call: the same whenever a run is played back."""
        named = ("tool", "caller_type", "chain_id", "chain_index", "outcome", "prefetched")
        return {name: getattr(self, name) for name in named}


@dataclass(slots=True)
class InvocationLog:
    """Calls in order, for several threads at once."""

    _kept: deque[Invocation] = field(default_factory=lambda: deque(maxlen=KEPT))
    _counts: Counter[str] = field(default_factory=Counter)
    explored: int = 0
    """How many calls looked at something, since the question was asked."""
    _begun: int = 0
    _before: Counter[str] = field(default_factory=Counter)
    _awaited: dict[int, bool] = field(default_factory=dict)
    _lock: forks.Lock = field(default_factory=forks.new_lock)

    def add(self, invocation: Invocation, *, explored: bool) -> int:
        """Add a call that has ended and return its number, from 0 on.

        `explored` says that it looked into the context.
        """
        with self._lock:
            self._kept.append(invocation)
            self._counts[invocation.tool] += 1
            self.explored += explored
            return self._counts.total() - 1

    def expect_result(self, number: int, *, explores: bool) -> None:
        """Expect that guest code reports what a call found, as the host could not look there."""
        with self._lock:
            self._awaited[number] = explores
            while len(self._awaited) > MAX_AWAITED:
                del self._awaited[next(iter(self._awaited))]

    def report_result(self, number: int, **fields: Any) -> None:
        """Fill in what a call found, once; ValueError if the call does not wait for a report."""
        with self._lock:
            at = number - (self._counts.total() - len(self._kept))
            if number not in self._awaited or at < 0:
                raise ValueError("this call does not wait for a result")
            explores = self._awaited.pop(number)
            self._kept[at] = dataclasses.replace(self._kept[at], **fields)
            self.explored += explores and bool(self._kept[at].found)

    def join_chain(self, parent: str, chain_id: str) -> None:
        """Add the first call of a turn to a chain, which only the second call has made one."""
        with self._lock:
            for at, entry in enumerate(self._kept):
                if entry.parent == parent and entry.chain_id is None:
                    self._kept[at] = dataclasses.replace(
                        entry, caller_type="chain", chain_id=chain_id, chain_index=0
                    )

    def of(self, parent: str) -> tuple[Invocation, ...]:
        """Return the calls of one turn that are kept."""
        with self._lock:
            return tuple([call for call in self._kept if call.parent == parent])

    def begin_question(self) -> None:
        """Count anew for another question: earlier calls stay in the log."""
        with self._lock:
            self._begun, self._before = self._counts.total(), Counter(self._counts)
            self.explored = 0

    def of_question(self) -> tuple[dict[str, int], tuple[Invocation, ...]]:
        """Return the calls since the question was asked: their counts, and those that are kept."""
        with self._lock:
            counts = dict(self._counts - self._before)
        return counts, self.since(self._begun)

    def counts(self) -> dict[str, int]:
        """Return how often each tool was called."""
        with self._lock:
            return dict(self._counts)

    def since(self, number: int) -> tuple[Invocation, ...]:
        """Return the calls after the first `number`, as far as they are kept."""
        with self._lock:
            new = min(self._counts.total() - number, len(self._kept))
            return tuple(self._kept)[len(self._kept) - new :] if new > 0 else ()

    def __iter__(self) -> Iterator[Invocation]:
        with self._lock:
            return iter(tuple(self._kept))

    def __len__(self) -> int:
        return self._counts.total()


def sizes(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int]:
    """Return the size of each argument: its length, or 1 if it has none."""
    given: dict[str, Any] = {**dict(zip(map(str, range(len(args))), args, strict=True)), **kwargs}
    return {name: len(value) if hasattr(value, "__len__") else 1 for name, value in given.items()}


def tokens(*values: Any) -> int:
    """Return about how many tokens the texts among some values have."""
    return sum(estimate(value) for value in values if isinstance(value, str))


def shows(answer: Any) -> bool:
    """Return whether a call gave something to see: not an empty text, nor a missing folder."""
    if not isinstance(answer, dict):
        return bool(answer) or isinstance(answer, list)
    return bool(answer.get("text") or answer.get("names") or answer.keys() & {"hits", "members"})
