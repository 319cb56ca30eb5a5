"""json_query and csv_query: parts of data by a path, rows of a table by a condition.

SECURITY: the paths and conditions are languages of their own, read by linear-time expressions.
"""

from __future__ import annotations

import csv
import io
import json
import operator
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_CHARACTERS = 4 << 20
MAX_FOUND = 1_000
MAX_VISITED = 200_000
LONGEST_PATH, MAX_STEPS = 500, 30
MAX_ROWS, MAX_CELL = 200_000, 100_000
_NAME = r"[^\s.\[\]'\"=!<>]+"
_STEP = re.compile(
    rf"\.?({_NAME})|\[(-?\d{{1,9}})\]|\[(\*)\]|\.(\*)|\[['\"]([^'\"]{{1,200}})['\"]\]"
    rf"|\[\?\s*\(?\s*@?\.?({_NAME})\s*(==|=|!=|<=|>=|<|>)\s*([^\])]{{1,200}})\)?\]"
)
_CONDITION = re.compile(
    r"\s*([^=!<>~]{1,200}?)\s*(==|=|!=|<=|>=|<|>|~)\s*(.{0,500}?)\s*", re.DOTALL
)
_AND = re.compile(r"\s+and\s+", re.IGNORECASE)


def json_query(data: Any, path: str) -> dict[str, object]:
    """Return the parts of JSON (a text, or data) that a path leads to: "orders[0].lines[*].price".

    `[*]` is every item, `[-1]` the last, `[?price > 10]` the items whose field fits. Returns
    {"values": [...], "total": n}.
    """
    value = _loaded(data) if isinstance(data, str) else data
    result: list[Any] = [value]
    visited = 0
    for step in _steps(path):
        reached = []
        for one in result:
            for item in step(one):
                visited += 1
                if visited > MAX_VISITED:
                    raise ValueError(f"the path leads through over {MAX_VISITED:,} values")
                reached.append(item)
        result = reached
    return {"values": result[:MAX_FOUND], "total": len(result)}


def csv_query(
    text: str,
    where: str = "",
    columns: list[str] | None = None,
    *,
    order_by: str = "",
    descending: bool = False,
    limit: int = 100,
    delimiter: str = ",",
) -> dict[str, object]:
    """Return rows of a CSV text with a header, by a condition: "price > 10 and city = Rome".

    `~` is "contains". Numbers compare as numbers. Returns {"rows": [{column: value}], "total": n}.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"the text has {len(text):,} characters; the most is {MAX_CHARACTERS:,}")
    if len(delimiter) != 1 or delimiter in '\r\n"\0':
        raise ValueError(f"delimiter must be one character, not {delimiter!r:.20}")
    if not 1 <= limit <= MAX_FOUND:
        raise ValueError(f"limit must be from 1 to {MAX_FOUND:,}, not {limit}")
    header, rows = _table(text, delimiter)
    wanted = [_column(name, header) for name in columns or header]
    for column, fits in _conditions(where, header):
        rows = [row for row in rows if column < len(row) and fits(row[column])]
    if order_by:
        at = _column(order_by, header)
        rows.sort(key=lambda row: _sortable(row[at] if at < len(row) else ""), reverse=descending)
    shown = [
        {header[at]: _number(row[at]) if at < len(row) else "" for at in wanted}
        for row in rows[:limit]
    ]
    return {"rows": shown, "total": len(rows)}


def _loaded(text: str) -> Any:
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"data has {len(text):,} characters; the most is {MAX_CHARACTERS:,}")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("data is nested too deeply") from None
    except ValueError as exc:
        raise ValueError(f"data is not JSON: {exc}") from None


def _steps(path: str) -> list[Callable[[Any], Iterator[Any]]]:
    given = path.strip().removeprefix("$")
    if len(given) > LONGEST_PATH:
        raise ValueError(f"path has {len(given)} characters; the most is {LONGEST_PATH}")
    steps: list[Callable[[Any], Iterator[Any]]] = []
    at = 0
    while at < len(given):
        match = _STEP.match(given, at)
        if match is None or len(steps) >= MAX_STEPS:
            raise ValueError(
                f"path is not clear at {given[at : at + 30]!r}: write it as a.b[0].c, a[*].b or "
                "a[?price > 10]"
            )
        steps.append(_step(match))
        at = match.end()
    return steps


def _step(match: re.Match[str]) -> Callable[[Any], Iterator[Any]]:
    name, index, every, each, quoted, field, symbol, literal = match.groups()
    key = name if name is not None else quoted
    if key is not None:
        return lambda value: iter((value[key],) if isinstance(value, dict) and key in value else ())
    if index is not None:
        return lambda value: iter(_item(value, int(index)))
    if every or each:
        return _children
    fits = _comparison(symbol, literal.strip().strip("'\""))

    def chosen(value: Any) -> Iterator[Any]:
        for child in _children(value):
            if isinstance(child, dict) and field in child and fits(child[field]):
                yield child

    return chosen


def _item(value: Any, index: int) -> tuple[Any, ...]:
    inside = isinstance(value, list) and -len(value) <= index < len(value)
    return (value[index],) if inside else ()


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _comparison(symbol: str, literal: str) -> Callable[[Any], bool]:
    """Return what compares with a literal: as numbers if both are, else as texts."""
    wanted = _number(literal)

    def fits(value: Any) -> bool:
        given: Any = _number(value) if isinstance(value, str) else value
        known: Any = wanted
        if isinstance(given, bool) or given is None:
            given, known = json.dumps(given), literal
        elif isinstance(given, str) or isinstance(known, str):
            given, known = str(value), literal
        elif not isinstance(given, int | float):
            return False
        return _COMPARISONS[symbol](given, known)

    return fits


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "~": lambda a, b: str(b).lower() in str(a).lower(),
}


def _table(text: str, delimiter: str) -> tuple[list[str], list[list[str]]]:
    rows = []
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        for row in reader:
            if row:
                rows.append(row)
            if len(rows) > MAX_ROWS:
                raise ValueError(f"the table has over {MAX_ROWS:,} rows")
    except csv.Error as exc:
        raise ValueError(f"line {reader.line_num} is not CSV: {exc}") from None
    if not rows:
        raise ValueError("the text has no header line")
    return [name.strip() for name in rows[0]], rows[1:]


def _conditions(where: str, header: list[str]) -> Iterator[tuple[int, Callable[[str], bool]]]:
    if len(where) > LONGEST_PATH:
        raise ValueError(f"where has {len(where):,} characters; the most is {LONGEST_PATH}")
    for part in _AND.split(where.strip()) if where.strip() else ():
        match = _CONDITION.fullmatch(part)
        if match is None:
            raise ValueError(f"no condition: {part[:60]!r}; write it as price > 10 and city = Rome")
        name, symbol, literal = match.groups()
        yield _column(name, header), _comparison(symbol, literal.strip("'\""))


def _column(name: str, header: list[str]) -> int:
    if name not in header:
        raise ValueError(f"there is no column {name[:60]!r}; there are {', '.join(header[:50])}")
    return header.index(name)


def _number(text: str) -> int | float | str:
    """Return a text as a number if it is one."""
    if len(text) > MAX_NUMBER or not text or text[0] not in "+-.0123456789":
        return text
    try:
        return int(text) if text.lstrip("+-").isdecimal() and text.isascii() else float(text)
    except ValueError:
        return text


MAX_NUMBER = 30
"""Characters of a number; a longer one stays a text."""


def _sortable(text: str) -> tuple[bool, float, str]:
    value = _number(text)
    return (True, 0.0, value) if isinstance(value, str) else (False, float(value), "")
