"""A labelled set for search: functions of installed libraries, queried by their docstrings.

A query is the first sentence of a function's docstring, and the function is the answer. Docstrings
are removed from the source before it is indexed.
"""

from __future__ import annotations

import ast
import random
import sysconfig
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LIBRARIES = ("numpy", "pandas")
NOT_OURS = frozenset({"test", "tests", "idlelib", "site-packages", "lib2to3", "conftest"})
SHORTEST, LONGEST = 5, 30
SEED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A sentence, and the function whose docstring it is from."""

    query: str
    path: str
    name: str


def make_set(folder: Path, files: int, questions: int) -> list[Question]:
    """Write source files below a folder, without the docstrings of the queried functions."""
    dice = random.Random(SEED)
    sources = _sources()
    chosen = sorted(dice.sample(sources, min(files, len(sources))))
    texts = {name: _read(path) for name, path in chosen}
    asked = [one for name, text in texts.items() for one in _documented(name, text)]
    picked = dice.sample(asked, min(questions, len(asked)))
    cuts: dict[str, list[ast.Expr]] = {}
    for question, docstring in picked:
        cuts.setdefault(question.path, []).append(docstring)
    for name, text in texts.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_without(text, cuts.get(name, [])))
    return [question for question, _ in picked]


def _sources() -> list[tuple[str, Path]]:
    places = [Path(sysconfig.get_paths()["stdlib"])]
    for library in LIBRARIES:
        spec = find_spec(library)
        places += [Path(one) for one in (spec and spec.submodule_search_locations) or []]
    found = []
    for place in places:
        below = sorted(_below(place))
        found += [(f"{place.name}/{path.relative_to(place)}", path) for path in below]
    return found


def _below(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name in NOT_OURS:
            continue
        if path.is_dir():
            yield from _below(path)
        elif path.suffix == ".py":
            yield path


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _documented(path: str, text: str) -> Iterator[tuple[Question, ast.Expr]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for name, node in _functions(tree.body, ""):
        sentence = _first_sentence(ast.get_docstring(node) or "")
        if SHORTEST <= len(sentence.split()) <= LONGEST and len(node.body) > 1:
            docstring = node.body[0]
            assert isinstance(docstring, ast.Expr)
            yield Question(query=sentence, path=path, name=name), docstring


def _functions(
    body: list[ast.stmt], owner: str
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield owner + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{owner}{node.name}.")


def _first_sentence(docstring: str) -> str:
    paragraph = docstring.partition("\n\n")[0]
    return " ".join(paragraph.partition(". ")[0].split())


def _without(text: str, docstrings: list[ast.Expr]) -> str:
    lines = text.split("\n")
    for one in docstrings:
        first, last = one.lineno - 1, (one.end_lineno or one.lineno) - 1
        indent = " " * one.col_offset
        lines[first : last + 1] = [indent + "..."] + [""] * (last - first)
    return "\n".join(lines)
