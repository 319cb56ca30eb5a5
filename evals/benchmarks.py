"""Public long-context benchmarks: files that the user downloaded, scored after their papers.

    oolong      context_window_text, question, answer "['x']", answer_type    exact; numbers: near
    ruler       input, outputs                                  share of the outputs in the answer
    longbench   context, question, choice_A to choice_D, answer, domain                 the letter
    browsecomp  query, answer, gold_docs, evidence_docs, negative_docs     the answer is contained

BrowseComp-Plus is published with a judge that is a model; here an answer counts if it contains the
expected one.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Union

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from evals.tasks import Task

    AnyTask = Union["Task", "BenchmarkTask"]  # noqa: UP007 - names in quotes

LETTERS = "ABCD"
CODE = "Code Repository Understanding"
"""The domain of LongBench v2 that is called CodeQA."""
NEAR = 0.75
"""What a difference of one takes of the score of a number, in OOLONG."""
_LETTER = re.compile(r"correct answer is \(?([ABCD])\)?|^\W*([ABCD])\W*$", re.IGNORECASE)
_ASKED = re.compile(r"(?s)\A(.*)\n(.*?\?[^?\n]*)\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkTask:
    """One row of a benchmark, as the arms take it."""

    family: str
    seed: int
    question: str
    text: str
    expected: tuple[str, ...]
    scorer: Callable[[str, tuple[str, ...]], float]
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Benchmark, size and number of the row."""
        return f"{self.family}-{len(self.text) // 1000}kB-{self.seed}"

    @property
    def whole(self) -> str:
        """All of the text."""
        return self.text

    def score(self, said: str) -> float:
        """Return the score of an answer, from 0 to 1."""
        return self.scorer(said, self.expected)

    def is_right(self, said: str) -> bool:
        """Return whether an answer has the full score."""
        return self.score(said) == 1.0


def load(name: str, folder: Path, most: int) -> list[BenchmarkTask]:
    """Return the first tasks of a benchmark, from the files in a folder by their names."""
    tasks: list[BenchmarkTask] = []
    for number, row in enumerate(_rows(folder)):
        task = READERS[name](number, row)
        if task is not None:
            tasks.append(task)
        if len(tasks) >= most:
            break
    if not tasks:
        raise SystemExit(f"{folder} has no rows of {name}: see the table in docs/evaluation.md")
    return tasks


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted([*folder.glob("*.jsonl"), *folder.glob("*.json")]):
        text = path.read_text()
        if path.suffix == ".json":
            yield from json.loads(text)
            continue
        yield from (json.loads(line) for line in text.splitlines() if line.strip())


def _oolong(number: int, row: dict[str, Any]) -> BenchmarkTask:
    expected = row["answer"]
    if isinstance(expected, str) and expected.startswith("["):
        expected = ast.literal_eval(expected)
    many = expected if isinstance(expected, list) else [expected]
    numeric = str(row.get("answer_type", "")).endswith("NUMERIC")
    return BenchmarkTask(
        family="oolong",
        seed=number,
        question=row["question"],
        text=row["context_window_text"],
        expected=tuple(map(str, many)),
        scorer=near if numeric else same,
    )


def _ruler(number: int, row: dict[str, Any]) -> BenchmarkTask:
    """The question is the last line of the input."""
    match = _ASKED.match(row["input"].strip())
    text, question = match.groups() if match else ("", row["input"])
    return BenchmarkTask(
        family="ruler",
        seed=row.get("index", number),
        question=question.strip(),
        text=text,
        expected=tuple(map(str, row["outputs"])),
        scorer=contained,
    )


def _longbench(number: int, row: dict[str, Any]) -> BenchmarkTask | None:
    if row["domain"] != CODE:
        return None
    choices = "\n".join(f"({letter}) {row[f'choice_{letter}']}" for letter in LETTERS)
    form = "Answer with one line: The correct answer is (letter)."
    return BenchmarkTask(
        family="longbench",
        seed=number,
        question=f"{row['question']}\n{choices}\n{form}",
        text=row["context"],
        expected=(row["answer"],),
        scorer=letter,
    )


def _browsecomp(number: int, row: dict[str, Any]) -> BenchmarkTask:
    kinds = ("gold_docs", "evidence_docs", "negative_docs")
    texts = {one["docid"]: one["text"] for kind in kinds for one in row.get(kind, ())}
    documents = [f"[document {docid}]\n{text}\n" for docid, text in sorted(texts.items())]
    return BenchmarkTask(
        family="browsecomp",
        seed=number,
        question=row["query"],
        text="\n".join(documents),
        expected=(row["answer"],),
        scorer=contained,
    )


READERS: dict[str, Callable[[int, dict[str, Any]], BenchmarkTask | None]] = {
    "oolong": _oolong,
    "ruler": _ruler,
    "longbench": _longbench,
    "browsecomp": _browsecomp,
}


def same(said: str, expected: tuple[str, ...]) -> float:
    """Return 1 if the answer, or what stands after its last colon, is one of the expected."""
    given = {_plain(said), _plain(said.rpartition(":")[2])}
    return float(any(_plain(one) in given for one in expected))


def near(said: str, expected: tuple[str, ...]) -> float:
    """Return 0.75 to the power of the difference between two numbers."""
    numbers = re.findall(r"-?\d+", said.replace(",", ""))
    return NEAR ** abs(int(numbers[-1]) - int(expected[0])) if numbers else 0.0


def contained(said: str, expected: tuple[str, ...]) -> float:
    """Return the share of the expected texts that the answer contains, in any case."""
    lower = said.lower()
    return sum(one.lower() in lower for one in expected) / len(expected)


def letter(said: str, expected: tuple[str, ...]) -> float:
    """Return 1 if the answer names the right letter."""
    match = _LETTER.search(said.replace("*", "").strip())
    return float(match is not None and (match[1] or match[2]).upper() == expected[0])


def _plain(text: str) -> str:
    return " ".join(text.lower().replace("*", "").strip(" .'\"").split())
