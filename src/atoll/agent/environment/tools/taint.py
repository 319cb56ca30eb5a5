"""Untrusted text: which came in from where, and whether a tool's arguments repeat it.

    context ─┐
    web ─────┼─▶ Sources ──▶ overlap of 32 characters with an argument ──▶ allow, ask, refuse
    model ───┘

SECURITY: the host compares texts; it does not follow data through guest code. Text that guest code
encodes, splits or rewords is not recognised. What cannot be compared in time, or was dropped
because there was too much of it, counts as untrusted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import date, timedelta
from datetime import time as clock
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any
from uuid import UUID

from atoll.concurrency import forks
from atoll.errors import ExecutionTimeoutError
from atoll.guest.shared.values import Opaque

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.sandbox.tools import Tool
    from atoll.search.index import ContextIndex

OVERLAP = 32
"""Characters in a row that an argument shares with a source to count as taken from it."""
_BLOCK = OVERLAP // 2
"""Every run of 31 characters or more has a whole block that begins at a multiple of 16."""
MAX_KEPT = 32 << 20
"""Characters of sources that are kept to compare with, beside the context."""
MAX_COMPARED = 100_000
"""Characters of arguments that are compared; longer ones count as untrusted."""
SECONDS = 2.0
_MAX_PLACES = 200
MAX_VALUES, MANY = 1_000_000, "too many values"
_WITHOUT_TEXT = (bool, int, float, complex, Decimal, Fraction, UUID, date, clock, timedelta, range)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A piece of an argument, and the source that has it too."""

    source: str
    """`context`, or the tool that returned it: `web_fetch`, `archive_file`, `llm_query` ..."""
    start: int = 0
    """Where the piece begins in the source, in characters, and where it ends."""
    end: int = 0
    text: str = ""
    why: str = ""
    """Why it counts as untrusted without having been compared."""

    def __str__(self) -> str:
        if self.why:
            return self.why
        return f"{self.text[:60]!r} is from {self.source} [{self.start}:{self.end}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """What an approver is asked about: a call, and where its arguments are from."""

    tool: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    origins: tuple[Origin, ...]


Approver = Callable[[Approval], bool | Awaitable[bool]]


@dataclass(slots=True)
class Sources:
    """The texts that came in during a session; for several threads at once."""

    _index: ContextIndex | None = None
    _texts: deque[tuple[str, str]] = field(default_factory=deque)
    _characters: int = 0
    _dropped: bool = False
    _lock: forks.Lock = field(default_factory=forks.new_lock)
    enabled: bool = True
    """Whether any tool looks at its arguments' origins; if not, nothing is kept."""

    def note(self, source: str, value: Any) -> None:
        """Keep the texts of a value that an untrusted source has returned."""
        if not self.enabled:
            return
        texts = _Texts(value)
        with self._lock:
            self._dropped = self._dropped or texts.unread == MANY
            for text in texts.found:
                if len(text) < OVERLAP:
                    continue
                self._texts.append((source, text))
                self._characters += len(text)
            while self._characters > MAX_KEPT:
                self._characters -= len(self._texts.popleft()[1])
                self._dropped = True

    def origins(self, *values: Any) -> tuple[Origin, ...]:
        """Return where parts of the values are from; the first of each text and source."""
        given = _Texts(values)
        texts = [text for text in given.found if len(text) >= OVERLAP]
        with self._lock:
            kept, dropped = list(self._texts), self._dropped
        if not (kept or dropped or self._index is not None):
            return ()
        if given.unread:
            return (_unknown(f"the arguments have {given.unread}, which cannot be compared"),)
        if not texts:
            return ()
        if dropped:
            return (_unknown(f"over {MAX_KEPT:,} characters came in, and some were dropped"),)
        if sum(map(len, texts)) > MAX_COMPARED:
            return (_unknown(f"the arguments have over {MAX_COMPARED:,} characters"),)
        return tuple(self._compare(texts, kept, time.monotonic() + SECONDS))

    def _compare(
        self, texts: list[str], kept: list[tuple[str, str]], until: float
    ) -> Iterator[Origin]:
        try:
            for text in texts:
                for source, known in kept:
                    yield from _first(text, source, partial(_places, known), _reader(known), until)
                if (index := self._index) is not None:
                    there = partial(index.places, seconds=max(0.01, until - time.monotonic()))
                    yield from _first(text, "context", there, index.text, until)
        except (TimeoutError, ExecutionTimeoutError):
            yield _unknown(f"the comparison took over {SECONDS:.0f} s")


def _first(
    text: str,
    source: str,
    places: Callable[[str], Iterator[int]],
    read: Callable[[int, int], str],
    until: float,
) -> Iterator[Origin]:
    """Yield the first piece of a text that a source has too, if there is one."""
    for at in range(0, len(text) - _BLOCK + 1, _BLOCK):
        for number, place in enumerate(places(text[at : at + _BLOCK])):
            if time.monotonic() > until or number > _MAX_PLACES:
                raise TimeoutError
            before = _common(text[:at][::-1], read(max(0, place - OVERLAP), place)[::-1])
            tail = read(place, place + len(text) - at)
            size = before + _common(text[at:], tail)
            if size >= OVERLAP:
                start = place - before
                piece = text[at - before : at - before + size]
                yield Origin(source=source, start=start, end=start + size, text=piece)
                return


def _reader(text: str) -> Callable[[int, int], str]:
    return lambda start, end: text[start:end]


def _places(text: str, block: str) -> Iterator[int]:
    at = text.find(block)
    while at >= 0:
        yield at
        at = text.find(block, at + 1)


def _common(text: str, other: str) -> int:
    """Return how many characters two texts have in common from their beginning on."""
    pairs = zip(text, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(text), len(other)))


def _unknown(why: str) -> Origin:
    return Origin(source="unknown", why=f"{why}: they count as untrusted")


class _Texts:
    """The texts in a value, at any depth: of a dict keys too, bytes as text."""

    def __init__(self, value: Any) -> None:
        self.found: list[str] = []
        self.unread = ""
        """The type of a value whose texts cannot be seen; MANY if there are too many values."""
        self._seen: set[int] = set()
        waiting, count = [value], 0
        while waiting and not self.unread:
            count += 1
            if count > MAX_VALUES:
                self.unread = MANY
            self._walk(waiting.pop(), waiting)

    def _walk(self, value: Any, waiting: list[Any]) -> None:
        """Take a text, or queue the items of a container: no depth is too deep."""
        if value is None or isinstance(value, _WITHOUT_TEXT):
            return
        if isinstance(value, str | PurePath | Opaque):
            self.found.append(str(value))
        elif isinstance(value, bytes | bytearray | memoryview):
            self.found.append(bytes(value).decode("utf-8", "replace"))
        elif id(value) not in self._seen:
            self._seen.add(id(value))
            inside = _inside(value)
            if inside is None:
                self.unread = type(value).__name__
                self.found += [str(value), repr(value)]  # all that a guest would see of it
            else:
                waiting += inside


def _inside(value: Any) -> list[Any] | None:
    """Return what a container holds; None for an object that is not known."""
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    if isinstance(value, Sequence | AbstractSet | deque):
        return list(value)
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in fields(value)]
    if hasattr(value, "columns") and hasattr(value, "index"):  # a table of pandas
        return [list(value.columns), list(value.index), *(value[name] for name in value.columns)]
    if callable(plain := getattr(value, "tolist", None)):  # an array, or a number of numpy
        held = plain()
        return held if isinstance(held, list) else [held]
    return None


async def permit(
    tool: Tool,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    origins: tuple[Origin, ...],
    approver: Approver | None,
) -> None:
    """Raise PermissionError if a call may not be made with arguments from these origins."""
    if not origins:
        return
    shown = "; ".join(map(str, origins[:3]))
    if tool.untrusted == "ask" and approver is not None:
        asked = Approval(tool=tool.name, args=args, kwargs=dict(kwargs), origins=origins)
        said = approver(asked)
        if (await said if isinstance(said, Awaitable) else said) is True:
            return
        raise PermissionError(f"{tool.name} was not approved: {shown}")
    raise PermissionError(
        f"{tool.name} does not take untrusted text: {shown}. Write the argument yourself"
    )
