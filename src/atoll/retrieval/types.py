"""What retrieval is made of and gives back: units of text, hits, and the bounds of an index."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from atoll.policy import check_positive

if TYPE_CHECKING:
    from collections.abc import Iterable

CODE, DOC = "code", "doc"
Progress = Callable[[int, int], None]
"""Is told how many of how many files are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A piece of a file that is found as one: a function, a class, a section, some lines."""

    path: str
    kind: str
    """function, method, class, module, section or lines."""
    name: str
    """Qualified, as `Class.method`; a section has its headers, as `Guide > Install`."""
    signature: str
    doc: str
    body: str
    start_line: int
    end_line: int
    """The last line of it; lines count from 1."""
    start: int
    end: int
    """Characters: `text[start:end]` of the file is the unit with all that is in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A unit that answers a query, the better the higher its score."""

    path: str
    name: str
    kind: str
    signature: str
    start_line: int
    end_line: int
    start: int
    end: int
    score: float
    text: str
    """The unit, cut where it is long."""


class Hits(tuple[Found, ...]):  # noqa: SLOT001 - what it is made of has no room for slots
    """What was found, best first, and how: which mode answered, and what went wrong on the way."""

    mode_used: str
    warning: str

    def __new__(cls, found: Iterable[Found], *, mode_used: str, warning: str = "") -> Self:
        """A tuple that knows where it is from."""
        hits = super().__new__(cls, found)
        hits.mode_used, hits.warning = mode_used, warning
        return hits


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """What a refresh did: counts of files, and of the units there are now."""

    changed: int
    removed: int
    unchanged: int
    units: int
    skipped: int = 0
    """Files that are not in the index: binary, too large, unreadable, or too many."""
    note: str = ""
    """What would make the index better, or why it is not whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How large what is indexed may be."""

    file_bytes: int = 4 << 20
    units_per_file: int = 5_000
    files: int = 100_000
    units: int = 500_000
    index_bytes: int = 2 << 30
    parse_seconds: float = 10.0
    """For one file; after that it is cut into windows of lines."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            check_positive(name, getattr(self, name))
