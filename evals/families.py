"""Generators of tasks, one for each kind of long-context work.

Filler is drawn from a pool of distinct lines, so that 100 MB take seconds. The lines that matter
are put at random places. Every family has lines of the same form that do not matter.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

from evals.source_tree import code
from evals.tasks import CODE, NUMBER, ROOM, SHIP, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

POOL = 2_000
PLACES = ("Alta", "Bodo", "Dale", "Elvik", "Fauske", "Grane", "Hamar", "Kirkenes", "Loen", "Narvik")
NAMES = ("Anna", "Bert", "Cleo", "Dora", "Emil", "Frida", "Gustav", "Hedda", "Ivar", "Jonas")
KINDS = ("billing", "delivery", "refund", "praise", "outage")
WORDS = (
    "pressure",
    "flow",
    "report",
    "shift",
    "crew",
    "normal",
    "reading",
    "level",
    "tank",
    "valve",
)
WEIGHTS = (5, 4, 3, 2, 1)
"""How often the kinds of entries come up: no two equally often."""


def needle(seed: int, size: int) -> Task:
    """One fact among others of its form."""
    return _codes("needle", seed, size, wanted=1)


def needles(seed: int, size: int) -> Task:
    """Three facts, each in another place."""
    return _codes("needles", seed, size, wanted=3)


def aggregate(seed: int, size: int) -> Task:
    """A count, for which every entry has to be looked at."""
    dice = random.Random(f"aggregate {seed} {size}")
    pairs = [(name, kind) for name in NAMES for kind in KINDS]
    entries = [
        (name, kind, f"entry: {_date(dice)} | customer {name} | topic {kind} | {_words(dice, 6)}")
        for name, kind in dice.choices(pairs, [WEIGHTS[KINDS.index(k)] for _, k in pairs], k=POOL)
    ]
    chosen = dice.choices(entries, k=size // 75)
    counts = Counter((name, kind) for name, kind, _ in chosen)
    name, kind = dice.choice(list(counts))
    question = f"How many entries are of customer {name} with the topic {kind}?"
    return Task(
        family="aggregate",
        seed=seed,
        question=f"{question} Answer with the number alone.",
        answer=frozenset({str(counts[name, kind])}),
        pattern=NUMBER,
        text=_text([line for _, _, line in chosen]),
    )


def pairs(seed: int, size: int) -> Task:
    """Two entries that belong together, found only by comparing all of them."""
    dice = random.Random(f"pairs {seed} {size}")
    count = max(4, size // 400)
    ships = dice.sample(range(10_000, 100_000), min(count, 80_000))
    boxes = dice.sample(range(10**6, 10**7), len(ships))
    boxes[1] = boxes[0]
    facts = [
        f"{_date(dice)} harbour {dice.choice(PLACES)}: ship S-{ship} carries container {box}"
        for ship, box in zip(ships, boxes, strict=True)
    ]
    return Task(
        family="pairs",
        seed=seed,
        question="Exactly two ships carry a container with the same number. Which two ships? "
        "Answer with the two names alone, such as S-10203, S-40506.",
        answer=frozenset({f"S-{ships[0]}", f"S-{ships[1]}"}),
        pattern=SHIP,
        text=_scattered(dice, facts, size),
    )


def hops(seed: int, size: int) -> Task:
    """Two facts, of which one leads to the other."""
    dice = random.Random(f"hops {seed} {size}")
    count = max(4, min(size // 2_000, 8_000))
    numbers = [dice.sample(range(1_000, 10_000), count) for _ in range(3)]
    facts = []
    for agent, locker, room in zip(*numbers, strict=True):
        facts += [
            f"{_date(dice)} the agent A-{agent} keeps the papers in locker L-{locker}",
            f"{_date(dice)} locker L-{locker} was moved to room R-{room}",
        ]
    return Task(
        family="hops",
        seed=seed,
        question=f"In which room are the papers of agent A-{numbers[0][0]}? "
        "Answer with the room alone, such as R-1234.",
        answer=frozenset({f"R-{numbers[2][0]}"}),
        pattern=ROOM,
        text=_scattered(dice, facts, size),
    )


FAMILIES: dict[str, Callable[[int, int], Task]] = {
    "needle": needle,
    "needles": needles,
    "aggregate": aggregate,
    "pairs": pairs,
    "hops": hops,
    "code": code,
}


def _codes(family: str, seed: int, size: int, wanted: int) -> Task:
    dice = random.Random(f"{family} {seed} {size}")
    places = [f"{place} {number}" for place in PLACES for number in range(1, 10)]
    chosen = dice.sample(places, max(wanted + 2, min(len(places), size // 4_000)))
    codes = {place: _code(dice) for place in chosen}
    facts = [f"{_date(dice)} the gate code of depot {one} is {codes[one]}" for one in chosen]
    asked = chosen[:wanted]
    which = f"depot {asked[0]}" if wanted == 1 else f"the depots {', '.join(asked)}"
    form = "the code alone, such as ABC-1234" if wanted == 1 else "the codes alone, with commas"
    return Task(
        family=family,
        seed=seed,
        question=f"What is the gate code of {which}? Answer with {form}.",
        answer=frozenset(codes[one] for one in asked),
        pattern=CODE,
        text=_scattered(dice, facts, size),
    )


def _scattered(dice: random.Random, facts: Sequence[str], size: int) -> str:
    """Return a text of about this size: the facts at random places among lines of filler."""
    pool = [f"{_date(dice)} station {dice.choice(PLACES)}: {_words(dice, 7)}" for _ in range(POOL)]
    room = size - sum(len(one) + 1 for one in facts)
    average = sum(map(len, pool)) / POOL + 1
    lines = dice.choices(pool, k=max(0, int(room / average))) + list(facts)
    dice.shuffle(lines)
    return _text(lines)


def _text(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n"


def _date(dice: random.Random) -> str:
    return f"{dice.randint(2031, 2039)}-{dice.randint(1, 12):02}-{dice.randint(1, 28):02}"


def _words(dice: random.Random, count: int) -> str:
    return " ".join(dice.choices(WORDS, k=count))


def _code(dice: random.Random) -> str:
    letters = "".join(dice.choices("ABCDEFGHJKLMNPQRSTUVWXYZ", k=3))
    return f"{letters}-{dice.randint(1_000, 9_999)}"
