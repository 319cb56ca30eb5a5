"""Typed questions over records, computed by code: count, sum, compare, find what is the same."""

from __future__ import annotations

import operator
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atoll.agent.strategies.question import stem

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.agent.strategies.records import Records, Row

OPERATIONS = "count distinct list sum mean max min most least pairs first last".split()
NUMERIC = frozenset({"sum", "mean", "max", "min"})
MAX_LISTED = 200
_COMPARED = re.compile(r"^\s*(>=|<=|!=|>|<|=)\s*(.+)$")
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")


class TallyError(ValueError):
    """A question over records that does not fit them; the message says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What to compute: of the rows that fit `where`, something of a field."""

    op: str
    where: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Fields, and the values of which a row has one; "> 5" compares."""
    field: str = ""
    """What is counted, summed or compared."""
    item: str = ""
    """What is named in the answer, if that is another field."""

    @classmethod
    def of(cls, data: Any, records: Records) -> Tally:
        """Return a tally of plain data, its fields and values as the records have them."""
        if not isinstance(data, dict) or data.get("op") not in OPERATIONS:
            raise TallyError(f"op must be one of {', '.join(OPERATIONS)}")
        where = data.get("where") or {}
        if not isinstance(where, dict):
            raise TallyError("where must be an object of fields and values")
        checked: dict[str, tuple[str, ...]] = {}
        for name, given in where.items():
            known = _field(name, records)
            values = given if isinstance(given, list) else [given]
            checked[known] = tuple(value_of(known, str(one), records) for one in values)
        names = {
            part: _field(data[part], records) if data.get(part) else ""
            for part in ("field", "item")
        }
        if data["op"] != "count" and not names["field"]:
            raise TallyError(f"{data['op']} needs a field")
        return cls(op=data["op"], where=checked, **names)


@dataclass(frozen=True, slots=True)
class Result:
    """The answer, and the rows that it rests on, by number."""

    text: str
    rows: list[int]


def compute(tally: Tally, records: Records) -> Result:
    """Return what a tally gives; TallyError if no row fits it."""
    chosen = [n for n, row in enumerate(records.rows) if _fits(row, tally.where)]
    if tally.op == "count":
        return Result(str(len(chosen)), chosen)
    if not chosen:
        raise TallyError("no record fits the conditions")
    if tally.op in NUMERIC:
        return _numeric(tally, records, chosen)
    values = [(n, records.rows[n].get(tally.field, "")) for n in chosen]
    if tally.op == "pairs":
        return _pairs(tally, records, values)
    return _listed(tally, records, values)


def _listed(tally: Tally, records: Records, values: list[tuple[int, str]]) -> Result:
    chosen = [n for n, _ in values]
    counts = Counter(value for _, value in values if value).most_common()
    if tally.op == "distinct":
        return Result(str(len(counts)), chosen)
    if tally.op == "list":
        return Result(", ".join(value for value, _ in counts[:MAX_LISTED]), chosen)
    if tally.op in ("first", "last"):
        number = chosen[0 if tally.op == "first" else -1]
        return Result(records.rows[number].get(tally.item or tally.field, ""), [number])
    if not counts:
        raise TallyError(f"{tally.field} is empty")
    best = counts[0 if tally.op == "most" else -1][1]
    ties = [value for value, count in counts if count == best]
    return Result(", ".join(ties), [n for n, value in values if value in ties])


def _numeric(tally: Tally, records: Records, chosen: list[int]) -> Result:
    numbers = {n: number_of(records.rows[n].get(tally.field, "")) for n in chosen}
    known = {n: number for n, number in numbers.items() if number is not None}
    if not known:
        raise TallyError(f"{tally.field} has no numbers")
    if tally.op == "sum":
        return Result(_text(sum(known.values())), list(known))
    if tally.op == "mean":
        return Result(_text(sum(known.values()) / len(known)), list(known))
    best = (max if tally.op == "max" else min)(known.values())
    rows = [n for n, number in known.items() if number == best]
    if not tally.item or tally.item == tally.field:
        return Result(_text(best), rows[:1])
    return Result(", ".join(dict.fromkeys(records.rows[n].get(tally.item, "") for n in rows)), rows)


def _pairs(tally: Tally, records: Records, values: list[tuple[int, str]]) -> Result:
    groups: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for number, value in values:
        item = records.rows[number].get(tally.item or tally.field, "")
        if value:
            groups[value].setdefault(item or str(number), number)
    same = [group for group in groups.values() if len(group) > 1]
    if not same:
        raise TallyError(f"no two records have the same {tally.field}")
    return Result(
        "; ".join(", ".join(group) for group in same[:MAX_LISTED]),
        [number for group in same for number in group.values()],
    )


def number_of(value: str) -> float | None:
    """Return the number in a value such as "$1,200" or "12 kg"; None if it has none."""
    match = _NUMBER.search(value)
    return float(match[0].replace(",", "")) if match else None


def _text(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".") if number % 1 else str(int(number))


def _field(name: Any, records: Records) -> str:
    """Return the field that a name means: in any case, singular or plural."""
    wanted = str(name).lower().strip()
    for one in records.fields:
        if one.lower() == wanted:
            return one
    for one in records.fields:
        if stem(one) == stem(wanted) or stem(wanted) in one.lower():
            return one
    raise TallyError(f"there is no field {name!r}: {', '.join(records.fields)}")


def value_of(name: str, value: str, records: Records) -> str:
    """Return a value as the records have it; TallyError if none has it."""
    if _COMPARED.match(value):
        return value
    values = Counter(row.get(name, "") for row in records.rows)
    wanted = value.lower().strip()
    near = [one for one in values if one.lower() == wanted]
    near = near or [one for one in values if stem(one) == stem(wanted)]
    near = near or [one for one in values if re.search(rf"\b{re.escape(wanted)}\b", one.lower())]
    if not near:
        raise TallyError(f"no record has {value!r} in {name}")
    return near[0] if len(near) == 1 or near[0].lower() == wanted else f"= {value}"


def _fits(row: Row, where: dict[str, tuple[str, ...]]) -> bool:
    return all(
        any(_holds(row.get(name, ""), value) for value in wanted) for name, wanted in where.items()
    )


def _holds(value: str, wanted: str) -> bool:
    match = _COMPARED.match(wanted)
    if match is None:
        return value.lower() == wanted.lower()
    sign, right = match.groups()
    if sign == "=":
        return re.search(rf"\b{re.escape(right.lower())}\b", value.lower()) is not None
    if sign == "!=":
        return value.lower() != right.lower()
    one, other = number_of(value), number_of(right)
    is_date = re.match(r"\d{4}-\d\d", value) is not None
    if is_date or one is None or other is None:
        return _SIGNS[sign](value, right)
    return _SIGNS[sign](one, other)


_SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}
