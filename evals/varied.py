"""Other kinds of text and question than FAMILIES: stories, other words than the text's, tables.

Also values that later ones replace, and questions that the text does not answer.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from evals.tasks import NUMBER, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FIRST = ("Marta", "Tobias", "Ingrid", "Paul", "Selma", "Viktor", "Nora", "Anton", "Greta", "Leo")
LAST = ("Holm", "Berger", "Lund", "Castellan", "Ruiz", "Novak", "Weiss", "Okafor", "Dahl")
TOWNS = ("Brakel", "Sundby", "Orta", "Velden", "Marsala", "Tarn", "Kolding", "Esker", "Lohme")
TRADES = ("carpenter", "baker", "surveyor", "pharmacist", "bookbinder", "piano tuner", "gardener")
THINGS = ("brass compass", "red bicycle", "violin", "rowing boat", "printing press", "telescope")
SIDES = ("north", "south", "upper", "lower", "inner")
DAYS = (
    "The rain had not stopped for a week.",
    "Nothing moved in the square.",
    "Somebody was always late for supper.",
    "The letters came on Tuesdays.",
    "It was the year of the long frost, and bread was dear.",
    "At the inn they spoke of little else.",
    "The river stood high and brown.",
    "Dogs barked until the lamps were out.",
)
NOT_SAID = r"\b(?:not|no)\b"


def prose(seed: int, size: int) -> Task:
    """Ask for a person's trade, in a story in which each person has one."""
    dice, people = _people("prose", seed, size)
    trades = {who: dice.choice(TRADES) for who in people}
    told = [f"{who} came from {dice.choice(TOWNS)} and became a {trades[who]}." for who in people]
    who = dice.choice(people)
    question = f"What does {who} do for a living?"
    return _told("prose", seed, question, trades[who], TRADES, _story(dice, told, size))


def paraphrase(seed: int, size: int) -> Task:
    """Ask in other words than the text's."""
    dice, people = _people("paraphrase", seed, size)
    things = {who: dice.choice(THINGS) for who in people}
    told = [f"In the end {who} purchased a {things[who]} before winter." for who in people]
    who = dice.choice(people)
    text = _story(dice, told, size)
    return _told("paraphrase", seed, f"What did {who} buy?", things[who], THINGS, text)


def table(seed: int, size: int) -> Task:
    """Ask for a sum over rows of a table, or for the largest number among them."""
    dice = random.Random(f"table {seed} {size}")
    rows = [
        (dice.choice(TOWNS), dice.choice(TRADES), dice.randint(1, 90), dice.randint(10, 900))
        for _ in range(size // 34)
    ]
    town, trade, *_ = dice.choice(rows)
    said = sum(row[2] for row in rows if row[:2] == (town, trade))
    question = f"How many units did {town} order in all from the {trade} department?"
    if seed % 2:
        said = max(row[3] for row in rows if row[0] == town)
        question = f"What is the highest price that an order from {town} has?"
    lines = [f"order {n},{','.join(map(str, row))}\n" for n, row in enumerate(rows)]
    text = "order,town,department,units,price\n" + "".join(lines)
    return _numbered("table", seed, question, said, text)


def override(seed: int, size: int) -> Task:
    """Ask for a value that was changed several times: the last one counts."""
    dice = random.Random(f"override {seed} {size}")
    tanks = dice.sample([f"{side} {town}" for side in SIDES for town in TOWNS], 12)
    levels = [(dice.choice(tanks), dice.randint(10, 99)) for _ in range(60)]
    verbs = ("was set to", "is now", "was changed to")
    lines = [
        f"shift {dice.choice(FIRST)}: all quiet, {dice.randint(1, 9)} rounds walked"
        for _ in range(size // 40)
    ]
    places = sorted(dice.sample(range(len(lines)), len(levels)), reverse=True)
    for place, (tank, level) in zip(places, reversed(levels), strict=True):
        said = f"the alarm level of the {tank} tank {dice.choice(verbs)} {level} percent"
        lines.insert(place, said)
    tank = dice.choice(levels)[0]
    last = [level for one, level in levels if one == tank][-1]
    question = f"What is the alarm level of the {tank} tank now?"
    return _numbered("override", seed, question, last, "\n".join(lines) + "\n")


def absent(seed: int, size: int) -> Task:
    """Ask for something that the text does not say, of a person in it or of another one."""
    dice, people = _people("absent", seed, size)
    told = [f"In the end {who} purchased a {dice.choice(THINGS)} before winter." for who in people]
    known = dice.choice(people)
    asked = f"In which year was {known} born?" if seed % 2 else "What did Ottilie Brandt buy?"
    return Task(
        family="absent",
        seed=seed,
        question=asked,
        answer=frozenset({"not"}),
        pattern=NOT_SAID,
        text=_story(dice, told, size),
    )


VARIED: dict[str, Callable[[int, int], Task]] = {
    "prose": prose,
    "paraphrase": paraphrase,
    "table": table,
    "override": override,
    "absent": absent,
}


def _people(family: str, seed: int, size: int) -> tuple[random.Random, list[str]]:
    dice = random.Random(f"{family} {seed} {size}")
    everybody = [f"{first} {last}" for first in FIRST for last in LAST]
    return dice, dice.sample(everybody, max(4, min(60, size // 1_000)))


def _story(dice: random.Random, told: Sequence[str], size: int) -> str:
    """Return paragraphs of several sentences, with the facts among them."""
    sentences = [*dice.choices(DAYS, k=size // 40), *told]
    dice.shuffle(sentences)
    paragraphs = [" ".join(sentences[at : at + 6]) for at in range(0, len(sentences), 6)]
    return "\n\n".join(paragraphs) + "\n"


def _told(family: str, seed: int, *told: str | tuple[str, ...]) -> Task:
    question, said, among, text = told
    assert isinstance(question, str)
    assert isinstance(text, str)
    return Task(
        family=family,
        seed=seed,
        question=question,
        answer=frozenset({str(said)}),
        pattern="|".join(among),
        text=text,
    )


def _numbered(family: str, seed: int, question: str, said: int, text: str) -> Task:
    return Task(
        family=family,
        seed=seed,
        question=question,
        answer=frozenset({str(said)}),
        pattern=NUMBER,
        text=text,
    )
