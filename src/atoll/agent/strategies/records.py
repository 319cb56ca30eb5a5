"""Records in a context: rows of a table, JSON lines, or lines of one form, with named fields.

A table says by its first line what its fields are. Other lines of one form are compared: words that
all of them share are the form, and what differs is a field, called by the word before it:

    2031-05-06 harbour Alta: ship S-10203 carries container 7654321
    ▶ date 2031-05-06, harbour Alta, ship S-10203, container 7654321

SECURITY: the text is hostile. Each line is looked at a fixed number of times, without patterns that
backtrack, and a context that is too long is left to other strategies.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from atoll.search.index import ContextIndex

LARGEST = 64 << 20
"""Characters of a context whose lines are all read."""
BLOCK = 1 << 20
LEAST_ROWS, MAX_FIELDS, LONGEST_LINE = 3, 40, 2_000
SAMPLED, SHARED, ALIKE = 300, 0.85, 0.4
"""Lines that a form is made of; the share of them that has each of its words; and the least share
of a line's words that it has in common with the one it is compared to."""
DELIMITERS = ("\t", ";", "|", ",")
_TOKEN = re.compile(r"[^\W_][\w'\u2019-]*(?:[./:-]\w+)*|_\w+|[^\w\s]")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}|\d{1,2}:\d{2}|\d{1,2}[./]\d{1,2}[./]\d{2,4}")
_DULL = frozenset("a an the of is was are were to in at on by for has have had with and as".split())

Row = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Rows with the same fields; `places` says where in the context each one is."""

    fields: tuple[str, ...]
    rows: list[Row]
    places: list[tuple[int, int]]
    what: str
    """Where they come from: "a table", "JSON lines", "lines of one form"."""


def table_of(index: ContextIndex) -> Records | None:
    """Return the rows of a context that is a table or JSON lines; None if it is neither."""
    if index.length > LARGEST:
        return None
    head = [line for _, line in _lines(index, 20_000) if line.strip()][:50]
    if len(head) <= LEAST_ROWS:
        return None
    if sum(line.lstrip().startswith("{") for line in head) > 0.9 * len(head):
        return _json_lines(index)
    for delimiter in DELIMITERS:
        widths = Counter(len(_cells(line, delimiter)) for line in head)
        width, count = widths.most_common(1)[0]
        if width > 1 and count > 0.9 * len(head) and _is_header(_cells(head[0], delimiter), width):
            return _table(index, delimiter, _cells(head[0], delimiter))
    return None


def data_of(value: Any) -> Records | None:
    """Return the rows of data: a list of objects, also as the only list in an object."""
    if isinstance(value, dict):
        lists = [one for one in value.values() if isinstance(one, list) and len(one) >= LEAST_ROWS]
        value = lists[0] if len(lists) == 1 else None
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        return None
    rows = [{str(key): _flat(one) for key, one in item.items()} for item in value]
    return _made(rows, [(0, 0)] * len(rows), "data")


def form_of(index: ContextIndex, seed: str, alike: Sequence[str]) -> Records | None:
    """Return the lines that have the form of `seed`, given other lines that may have it too."""
    if index.length > LARGEST:
        return None
    skeleton = _skeleton(_tokens(seed), [_tokens(line) for line in alike[:SAMPLED]])
    if sum(token.isalpha() for token in skeleton) < 2:
        return None
    names = _names(skeleton, _tokens(seed))
    rows, places = [], []
    for start, line in _lines(index):
        slots = _slots(skeleton, _tokens(line))
        if slots is not None:
            rows.append({name: slot for name, slot in zip(names, slots, strict=True) if name})
            places.append((start, start + len(line)))
    return _made(rows, places, "lines of one form")


def _made(rows: list[Row], places: list[tuple[int, int]], what: str) -> Records | None:
    counts = Counter(name for row in rows for name, value in row.items() if value)
    fields = tuple(name for name, count in counts.items() if count >= len(rows) / 2)[:MAX_FIELDS]
    if len(rows) < LEAST_ROWS or not fields:
        return None
    return Records(fields=fields, rows=rows, places=places, what=what)


def _lines(index: ContextIndex, most: int = LARGEST) -> Iterator[tuple[int, str]]:
    """Yield the lines with their offsets; a line that is too long is left out."""
    at, rest = 0, ""
    while at < min(index.length, most):
        text = rest + index.text(at, at + BLOCK)
        start, at = at - len(rest), at + BLOCK
        *whole, rest = text.split("\n")
        for line in whole:
            if len(line) <= LONGEST_LINE:
                yield start, line
            start += len(line) + 1
        rest = rest[-LONGEST_LINE - 1 :]
    if rest and most >= index.length:
        yield index.length - len(rest), rest


def _cells(line: str, delimiter: str) -> list[str]:
    if delimiter == "|":
        return [cell.strip() for cell in line.strip().strip("|").split("|")]
    try:
        cells = next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []
    return [cell.strip() for cell in cells]


def _is_header(cells: list[str], width: int) -> bool:
    """Return whether these can be names: all different, short, not numbers."""
    names = [cell for cell in cells if cell and len(cell) < 40 and not _number(cell)]
    return len(names) == width == len(set(names)) and not any(_DATE.search(one) for one in names)


def _number(cell: str) -> bool:
    return bool(re.fullmatch(r"[-+$€£]?[\d.,]+%?", cell))


def _table(index: ContextIndex, delimiter: str, fields: list[str]) -> Records | None:
    rows, places = [], []
    for start, line in _lines(index):
        cells = _cells(line, delimiter)
        if len(cells) == len(fields) and cells != fields and not set("".join(cells)) <= set("-: "):
            rows.append(dict(zip(fields, cells, strict=True)))
            places.append((start, start + len(line)))
    return _made(rows, places, "a table")


def _json_lines(index: ContextIndex) -> Records | None:
    rows, places = [], []
    for start, line in _lines(index):
        try:
            item = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(item, dict):
            rows.append({str(key): _flat(value) for key, value in item.items()})
            places.append((start, start + len(line)))
    return _made(rows, places, "JSON lines")


def _flat(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _tokens(line: str) -> list[str]:
    return _TOKEN.findall(line[:LONGEST_LINE])


def _skeleton(seed: list[str], others: Sequence[list[str]]) -> list[str]:
    """Return the words of a line that most lines like it have, in this order."""
    counts, alike = Counter[int](), 0
    for other in others:
        shared = _common(seed, other)
        if len(shared) >= max(2, ALIKE * min(len(seed), len(other))):
            alike += 1
            counts.update(shared)
    if alike < LEAST_ROWS:
        return []
    return [
        token
        for at, token in enumerate(seed)
        if counts[at] >= SHARED * alike and not re.search(r"\d", token)
    ]


def _common(one: list[str], other: list[str]) -> list[int]:
    """Return the places in `one` of a longest common subsequence of two short lists."""
    one, other = one[:60], other[:60]
    best = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i in range(len(one) - 1, -1, -1):
        for j in range(len(other) - 1, -1, -1):
            same = one[i] == other[j]
            best[i][j] = best[i + 1][j + 1] + 1 if same else max(best[i + 1][j], best[i][j + 1])
    places, i, j = [], 0, 0
    while i < len(one) and j < len(other):
        if one[i] == other[j]:
            places.append(i)
            i, j = i + 1, j + 1
        elif best[i + 1][j] >= best[i][j + 1]:
            i += 1
        else:
            j += 1
    return places


def _slots(skeleton: list[str], tokens: list[str]) -> list[str] | None:
    """Return what stands before, between and after the words of a form; None if it has another."""
    slots, at = [], 0
    for word in skeleton:
        try:
            found = tokens.index(word, at)
        except ValueError:
            return None
        slots.append(" ".join(tokens[at:found]))
        at = found + 1
    return [*slots, " ".join(tokens[at:])]


def _names(skeleton: list[str], seed: list[str]) -> list[str]:
    """Return a name for each slot: the word before it, or what it looks like."""
    slots = _slots(skeleton, seed) or [""] * (len(skeleton) + 1)
    names: list[str] = []
    for at, slot in enumerate(slots):
        before = [word for word in skeleton[:at] if word.isalpha()]
        close = [word for word in before[-2:] if word.lower() not in _DULL]
        after = [word for word in skeleton[at : at + 1] if word.isalpha()]
        name = (close or before or ([] if _DATE.match(slot) else after) or ["date"])[-1].lower()
        names.append(name if name not in names else f"{name}_{at}")
    return names
