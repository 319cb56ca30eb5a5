"""Does the learned planner pay? A generated mix of questions on which each strategy wins somewhere.

    python -m bench.planning

A scripted model answers every question rightly, whatever the strategy; what differs is how many
tokens that takes. Five planners see the same tasks: four that always take one strategy, and one
that learns from a memory. The first 50 tasks are for learning; the table shows those after them.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.agent.memory.episodic import EpisodicMemory
from atoll.agent.memory.learner import Learner, quality

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from atoll.agent.memory.vectors import Embedder

WAYS = ("direct", "scan", "search", "delegated")
DEFAULT = "mixed"
"""The strategy of a run without advice."""
LEARNING, MEASURED = 50, 80
NOUNS = (
    "order", "invoice", "letter", "ticket", "shipment", "contract", "meeting", "recipe", "patient",
    "flight", "parcel", "lecture", "machine", "vessel", "member", "garden",
)  # fmt: skip
NAMES = ("Ada", "Karl", "Mina", "Omar", "Ines", "Paul", "Rosa", "Theo", "Vera", "Yann")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Questions of one kind, and what a right answer costs by each strategy."""

    questions: tuple[str, ...]
    tokens: dict[str, int]


def _tokens(*numbers: int) -> dict[str, int]:
    return dict(zip((*WAYS, DEFAULT), numbers, strict=True))


FAMILIES = {
    "one fact": Family(
        questions=(
            "Which {noun} did {name} mention first?",
            "Which {noun} did {name} mention last?",
            "Which {noun} did {name} mention in the text?",
        ),
        tokens=_tokens(60_000, 45_000, 3_000, 30_000, 8_000),
    ),
    "count by meaning": Family(
        questions=(
            "How many complaints about a {noun} are there in total?",
            "How many complaints about a late {noun} are there in total?",
            "How many complaints about a broken {noun} are there in total?",
        ),
        tokens=_tokens(70_000, 50_000, 65_000, 12_000, 30_000),
    ),
    "order of events": Family(
        questions=(
            "Tell step by step what happens to the {noun} of {name} from beginning to end.",
            "Tell step by step what happens to the {noun} from beginning to end.",
            "Tell step by step what happens to {name} from beginning to end.",
        ),
        tokens=_tokens(55_000, 14_000, 60_000, 40_000, 28_000),
    ),
    "short text": Family(
        questions=(
            "Summarise this short note about the {noun} in one sentence.",
            "Summarise this short note by {name} in one sentence.",
            "Summarise this short note about a {noun} by {name} in one sentence.",
        ),
        tokens=_tokens(1_500, 9_000, 14_000, 11_000, 7_000),
    ),
}
UNSEEN = Family(
    questions=(
        "Compare the two tables of {noun} prices and list the rows that differ.",
        "Is the signature of {name} genuine?",
        "Translate the paragraph on the {noun} into French.",
    ),
    tokens=_tokens(20_000, 25_000, 24_000, 26_000, 10_000),
)


@dataclass(slots=True)
class Score:
    """The tokens that a planner has used, and how many of its answers were right."""

    tokens: int = 0
    right: int = 0
    tasks: int = 0

    def add(self, tokens: int) -> None:
        """Count a task: the scripted model's answer is right with every strategy."""
        self.tokens += tokens
        self.right += 1
        self.tasks += 1


def tasks(rng: random.Random, families: list[Family], number: int) -> Iterator[tuple[str, Family]]:
    """Yield questions of all families in random order, with new names and nouns."""
    for _ in range(number):
        family = rng.choice(families)
        question = rng.choice(family.questions)
        yield question.format(noun=rng.choice(NOUNS), name=rng.choice(NAMES)), family


def cost(rng: random.Random, family: Family, way: str) -> int:
    """Return the tokens of one run: up to 30 % more or less each time."""
    return int(family.tokens[way] * rng.uniform(0.7, 1.3))


def learned(memory: EpisodicMemory, question: str, spend: Callable[[str], int]) -> int:
    """Do one run with advice, record its outcome in the memory, and return its tokens."""
    learner = Learner(memory, on_failure=_fail)
    way = learner.advise(question, WAYS).strategy or DEFAULT
    tokens = spend(way)
    learner.remember(
        way,
        done=way,
        outcome="answered",
        quality=quality("answered", quotes=1),
        tokens=tokens,
        context_tokens=50_000,
    )
    return tokens


def simulate(seed: int, folder: Path, embedder: Embedder | None = None) -> dict[str, Score]:
    """Return the scores after the learning tasks; `unseen: ...` are those of a kind never met."""
    rng = random.Random(seed)
    memory = EpisodicMemory(folder / f"memory-{seed}.db", seed=seed, embedder=embedder)
    for question, family in tasks(rng, list(FAMILIES.values()), LEARNING):
        learned(memory, question, partial(cost, rng, family))
    scores = {name: Score() for name in (*WAYS, DEFAULT, "learned")}
    for question, family in tasks(rng, list(FAMILIES.values()), MEASURED):
        for way in (*WAYS, DEFAULT):
            scores[way].add(cost(rng, family, way))
        scores["learned"].add(learned(memory, question, partial(cost, rng, family)))
    return scores | _unseen(rng, memory)


def _unseen(rng: random.Random, memory: EpisodicMemory) -> dict[str, Score]:
    """Return scores on a new kind of question, each the first that the memory meets."""
    scores = {"unseen: mixed": Score(), "unseen: learned": Score()}
    for question, family in tasks(rng, [UNSEEN], 20):
        advice = Learner(memory, on_failure=_fail).advise(question, WAYS)
        scores["unseen: mixed"].add(family.tokens[DEFAULT])
        scores["unseen: learned"].add(family.tokens[advice.strategy or DEFAULT])
    return scores


def _fail(reason: str) -> None:
    raise AssertionError(reason)


def main() -> None:
    """Print the table, as the mean of five seeds."""
    with tempfile.TemporaryDirectory() as folder:
        rounds = [simulate(seed, Path(folder)) for seed in range(5)]
    print("| planner | tokens per task | right answers |\n| --- | --- | --- |")
    for name in rounds[0]:
        done = [one[name] for one in rounds]
        tokens = sum(one.tokens for one in done) / sum(one.tasks for one in done)
        share = sum(one.right for one in done) / sum(one.tasks for one in done)
        print(f"| {name} | {tokens:,.0f} | {share:.0%} |")


if __name__ == "__main__":
    main()
