"""Data of the retrieval: units of text, hits, and the bounds of an index."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Self

from atoll.policy import check_positive

if TYPE_CHECKING:
    from collections.abc import Iterable

CODE, DOC = "code", "doc"
Progress = Callable[[int, int], None]
"""Called with how many files are done, and how many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A part of a file that a search returns: a function, a class, a section, some lines."""

    path: str
    kind: str
    """function, method, class, module, section or lines."""
    name: str
    """Qualified, such as `Class.method`; for a section its headers, such as `Guide > Install`."""
    signature: str
    doc: str
    body: str
    start_line: int
    end_line: int
    """The last line; lines count from 1."""
    start: int
    end: int
    """In characters: `text[start:end]` of the file is the whole unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A unit that matches a query; a higher score is better."""

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
    """The unit's text; a long one is cut."""


class Hits(tuple[Found, ...]):  # noqa: SLOT001 - what it is made of has no room for slots
    """The units found, best first; the mode that answered, and a warning if another one failed."""

    mode_used: str
    warning: str

    def __new__(cls, found: Iterable[Found], *, mode_used: str, warning: str = "") -> Self:
        """Return the tuple with its mode and warning."""
        hits = super().__new__(cls, found)
        hits.mode_used, hits.warning = mode_used, warning
        return hits


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """The result of a refresh: counts of files, and of the units in the index."""

    changed: int
    removed: int
    unchanged: int
    units: int
    skipped: int = 0
    """Files that are not in the index: binary, too large, unreadable, or too many."""
    note: str = ""
    """Advice that would make the index better, or why it is incomplete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of an index."""

    file_bytes: int = 4 << 20
    units_per_file: int = 5_000
    files: int = 100_000
    units: int = 500_000
    index_bytes: int = 2 << 30
    parse_seconds: float = 10.0
    """Seconds to parse one file; after that it is split into windows of lines."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            check_positive(name, getattr(self, name))


IGNORED_FOLDERS = frozenset(
    """
    .git .hg .svn node_modules __pycache__ .venv venv .tox .nox .mypy_cache .ruff_cache
    .pytest_cache .eggs .idea .ipynb_checkpoints
""".split()
)
PYTHON = frozenset({".py", ".pyi", ".pyw"})
DOCUMENTS = frozenset(
    ("", *".md .markdown .mdx .rst .txt .text .html .htm .xhtml .adoc .org .tex .log".split())
)
_BY_GRAMMAR = {
    "bash": ".sh .bash .zsh",
    "c": ".c .h",
    "cpp": ".cc .cpp .cxx .hpp .hh .hxx .cu",
    "csharp": ".cs",
    "dart": ".dart",
    "go": ".go",
    "groovy": ".groovy .gradle",
    "java": ".java",
    "javascript": ".js .jsx .mjs .cjs",
    "julia": ".jl",
    "kotlin": ".kt .kts",
    "lua": ".lua",
    "objc": ".m .mm",
    "ocaml": ".ml",
    "perl": ".pl .pm",
    "php": ".php",
    "powershell": ".ps1 .psm1",
    "r": ".r",
    "ruby": ".rb",
    "rust": ".rs",
    "scala": ".scala .sc",
    "solidity": ".sol",
    "swift": ".swift",
    "tsx": ".tsx",
    "typescript": ".ts .mts .cts",
    "zig": ".zig",
}
GRAMMARS = {suffix: name for name, suffixes in _BY_GRAMMAR.items() for suffix in suffixes.split()}


def suffix_of(path: str) -> str:
    """Return the suffix of a file's name, in lower case."""
    return os.path.splitext(path)[1].lower()


def corpus_of(path: str) -> str:
    """Return the search that covers a file: `code` or `doc`."""
    return DOC if suffix_of(path) in DOCUMENTS else CODE


def needs_parser(path: str) -> bool:
    """Return whether a file needs a parser, which a hostile file might crash."""
    return suffix_of(path) in PYTHON or (suffix_of(path) in GRAMMARS and has_grammars())


def grammar_of(path: str) -> str:
    """Return the name of a file's grammar; "" for Python, which needs none."""
    return GRAMMARS.get(suffix_of(path), "")


def has_grammars() -> bool:
    """Return whether the extra `retrieval` is installed."""
    return find_spec("semble_grammars") is not None
