"""Classifies files by their names: Python, a language with a grammar, a document, or lines."""

from __future__ import annotations

import os
from importlib.util import find_spec

from atoll.agent.retrieval.types import CODE, DOC

IGNORED_FOLDERS = frozenset({
    ".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", ".tox", ".nox",
    ".mypy_cache", ".ruff_cache", ".pytest_cache", ".eggs", ".idea", ".ipynb_checkpoints",
})  # fmt: skip
PYTHON = frozenset({".py", ".pyi", ".pyw"})
DOCUMENTS = frozenset({
    "", ".md", ".markdown", ".mdx", ".rst", ".txt", ".text", ".html", ".htm", ".xhtml", ".adoc",
    ".org", ".tex", ".log",
})  # fmt: skip
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
