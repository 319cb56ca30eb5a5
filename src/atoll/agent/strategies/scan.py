"""scan: count, sum and compare all records of a context, by code.

    context ─▶ records (a table, JSON, lines of one form) ─ fields ─▶ model ─▶ a typed tally
                  └───────────────── all rows ──────────────────────▶ code ◀──┘ ─▶ answered

The model reads the fields and the question, not the rows, and says what to compute; it never does
arithmetic. Conditions that the question names by a value of a field are found by code.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from atoll.agent.environment.exploration import Exploration
from atoll.agent.rlm.budget import BudgetError
from atoll.agent.rlm.types import RunResult
from atoll.agent.strategies.passages import Passages
from atoll.agent.strategies.question import COMMON, stem
from atoll.agent.strategies.records import data_of, form_of, table_of
from atoll.agent.strategies.tally import Tally, TallyError, compute, number_of
from atoll.agent.strategies.types import Outcome
from atoll.search import evidence
from atoll.text.tokens import estimate

if TYPE_CHECKING:
    from atoll.agent.strategies.question import Asked
    from atoll.agent.strategies.records import Records
    from atoll.agent.strategies.tally import Result
    from atoll.agent.strategies.types import Known, Price, Task

SEEDS, ALIKE = 3, 300
"""Lines from which a form may be made, and lines that they are compared to."""
TRIES = 2
REPLY_TOKENS, USUAL_TOKENS = 90, 30
EVIDENCE = 3
"""Rows that are quoted as evidence."""
LONGEST_VALUE = 24
MAX_VALUES = 5_000
"""Different values of a field that are looked for in a question."""
SYSTEM = """\
Turn a question about records into one JSON object, and write nothing else. op is count, distinct, \
list, sum, mean, max, min, most, least, pairs, first or last; where has the conditions.
Fields: day (Monday), guest (Bo Lie), room (14), price (80)
Q: How many guests came on Monday?
{"op": "count", "where": {"day": "Monday"}}
Q: Which two guests had the same room?
{"op": "pairs", "field": "room", "item": "guest"}
Q: What did Bo Lie pay in all?
{"op": "sum", "field": "price", "where": {"guest": "Bo Lie"}}
Q: Who paid most for room 14?
{"op": "max", "field": "price", "item": "guest", "where": {"room": "14"}}
Q: Which guest came most often?
{"op": "most", "field": "guest"}
Q: How many rooms cost more than 50?
{"op": "count", "where": {"price": "> 50"}}"""
_OBJECT = re.compile(r"\{.*\}", re.DOTALL)
_HOW_MANY = re.compile(r"(?i)\bhow (?:many|much)\s+([\w-]+)")


class Scan:
    """Records by code, what to compute by the model."""

    name = "scan"

    async def price(self, task: Task, *, quick: bool = False) -> Price | None:
        """Return the price of one call; None if the context has no records that fit."""
        if quick:
            return None
        found = await task.prepared("records", _records)
        if found is None:
            return None
        read = estimate(SYSTEM) + estimate(_question(task.asked, found))
        return task.price(read, USUAL_TOKENS, most_calls=TRIES)

    async def run(self, task: Task, known: Known) -> Outcome:
        """Ask for a tally, and compute it; one that does not fit is asked for once more."""
        found = await task.prepared("records", _records)
        if found is None:
            return Outcome(why="the context has no records that fit the question")
        asked = _question(task.asked, found)
        trouble = ""
        for turn in range(1, TRIES + 1):
            try:
                reply = await task.ask(SYSTEM, asked + trouble, REPLY_TOKENS)
                tally = await asyncio.to_thread(_tally, reply, task.asked, found)
                result = await asyncio.to_thread(compute, tally, found)
            except TallyError as exc:
                trouble = f"\n(Not {' '.join(reply.split())[:200]}: {exc})"
            except BudgetError as exc:
                known.notes.append(str(exc))
                return Outcome(why=str(exc))
            else:
                return Outcome(result=_ending(task, found, tally, result, turn))
        why = f"no computation over {found.what} fits the question{trouble}"
        known.notes.append(why)
        return Outcome(why=why)


def _records(task: Task) -> Records | None:
    """Return the records that the question speaks of."""
    if task.index is None:
        return None
    found = data_of(task.data) if task.data is not None else table_of(task.index)
    found = found or _by_form(task)
    if found is None:
        return None
    task.ledger.scan(0, task.index.length)
    text = task.asked.text.lower()
    mentioned = any(stem(part) in text for one in found.fields for part in one.split("_"))
    return found if mentioned or _named_values(task.asked, found) else None


def _by_form(task: Task) -> Records | None:
    """Return the lines that have the form of the best line that a search finds."""
    assert task.index is not None
    passages = Passages(task.index, task.ledger)
    if passages.kind != "lines":
        return None
    seeds = passages.search((), task.asked.words, SEEDS)
    alike = [one.text for one in passages.search((), task.asked.words[:3], ALIKE)]
    alike += passages.sample(ALIKE)
    forms = (form_of(task.index, seed.text, alike) for seed in seeds)
    return next((found for found in forms if found is not None), None)


def _question(asked: Asked, found: Records) -> str:
    values = {
        name: next((row[name] for row in found.rows if row.get(name)), "") for name in found.fields
    }
    fields = ", ".join(f"{name} ({value[:LONGEST_VALUE]})" for name, value in values.items())
    return f"Fields: {fields}\nQ: {asked.text}"


def _tally(reply: str, asked: Asked, found: Records) -> Tally:
    """Return the tally of a reply, with the conditions that the question names itself."""
    match = _OBJECT.search(reply)
    try:
        data: Any = json.loads(match[0]) if match else None
    except (ValueError, RecursionError):
        raise TallyError("this is not JSON") from None
    if not isinstance(data, dict):
        raise TallyError("this is not a JSON object")
    named, given = _named_values(asked, found), data.get("where")
    kept = {
        name: value
        for name, value in (given.items() if isinstance(given, dict) else ())
        if name not in named and _is_asked(str(value), asked)
    }
    data["where"] = {**kept, **{name: list(values) for name, values in named.items()}}
    return _summed(Tally.of(data, found), asked, found)


def _is_asked(value: str, asked: Asked) -> bool:
    """Return whether the question itself has a value that a condition compares with."""
    words = re.findall(r"[\w.]+", value.lower())
    return bool(words) and all(stem(word) in asked.text.lower() for word in words)


def _summed(tally: Tally, asked: Asked, found: Records) -> Tally:
    """Return a sum in place of a count, if "how many" asks for what a field has numbers of."""
    match = _HOW_MANY.search(asked.text)
    if tally.op != "count" or match is None:
        return tally
    for name in found.fields:
        if stem(name) == stem(match[1]) and all(
            number_of(row.get(name, "")) is not None for row in found.rows[:50]
        ):
            return replace(tally, op="sum", field=name)
    return tally


def _named_values(asked: Asked, found: Records) -> dict[str, tuple[str, ...]]:
    """Return the values of fields that the question contains, by field."""
    text = asked.text.lower()
    words = {stem(word): word for word in re.findall(r"\w[\w'-]*", text)}
    result: dict[str, tuple[str, ...]] = {}
    for name in found.fields:
        values = dict.fromkeys(row.get(name, "") for row in found.rows)
        if len(values) > MAX_VALUES and not asked.names:
            continue
        named = [value for value in values if _is_named(value, text, words, found.fields)]
        longest = [one for one in named if not any(one != o and one in o for o in named)]
        if longest:
            result[name] = tuple(longest)
    return result


def _is_named(value: str, text: str, words: dict[str, str], fields: tuple[str, ...]) -> bool:
    lower = value.lower()
    if len(lower) < 2 or lower in COMMON or any(stem(lower) == stem(one) for one in fields):
        return False
    if " " in lower or not lower.isalpha():
        return re.search(rf"(?<![\w-]){re.escape(lower)}(?![\w-])", text) is not None
    return stem(lower) in words


def _ending(task: Task, found: Records, tally: Tally, result: Result, turn: int) -> RunResult:
    """Return the answer, with the first rows that it rests on as evidence."""
    assert task.index is not None
    places = [found.places[n] for n in result.rows[:EVIDENCE] if found.places[n][1]]
    quotes = [task.index.text(*place).strip() for place in places]
    where = ", ".join(f"{name} {' or '.join(v)}" for name, v in tally.where.items())
    parts = [tally.op, tally.field, f"where {where}" * bool(where)]
    return RunResult(
        text=result.text,
        reason="",
        how=" ".join(filter(None, parts)),
        evidence=evidence.check(task.index, quotes) if quotes else (),
        coverage=task.ledger.coverage(),
        ledger=task.ledger,
        turns=turn,
        exploration=Exploration(
            strategy="scan",
            calls={"grep": 1},
            exploration_tokens=estimate(_question(task.asked, found)),
            result_tokens=estimate(result.text),
        ),
    )
