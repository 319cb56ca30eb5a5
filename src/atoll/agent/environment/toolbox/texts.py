"""text_diff and regex_test: differences of two texts, and what a regular expression matches.

SECURITY: texts and patterns are a guest's. The diff stops at a number of differences, as its time
grows with them; the expression is RE2's, or runs in a child process with a deadline.
"""

from __future__ import annotations

from typing import Any

from atoll.search.patterns import check_pattern, compile_expression

MAX_CHARACTERS = 1 << 20
MAX_LINES = 20_000
MAX_DIFFERENCES = 300
MAX_MATCHES = 100
SHOWN = 200
LONGEST_PATTERN = 1_000


def text_diff(old: str, new: str, context: int = 3) -> dict[str, object]:
    """Compare two texts line by line: a unified diff, and how many lines were added and removed."""
    if not 0 <= context <= MAX_MATCHES:
        raise ValueError(f"context must be from 0 to {MAX_MATCHES} lines, not {context}")
    first, second = _lines(old, "old"), _lines(new, "new")
    edits = _edits(first, second)
    added = sum(sign == "+" for sign, _, _ in edits)
    removed = sum(sign == "-" for sign, _, _ in edits)
    lines = list(_hunks(edits, first, second, context))
    return {
        "equal": not added + removed,
        "added": added,
        "removed": removed,
        "diff": "\n".join(lines),
    }


def regex_test(pattern: str, text: str, ignore_case: bool = False) -> dict[str, object]:  # noqa: FBT001, FBT002
    """Try a regular expression (RE2) on a text: the matches with their places, at most 100."""
    if len(pattern) > LONGEST_PATTERN:
        raise ValueError(
            f"pattern has {len(pattern):,} characters; the most is {LONGEST_PATTERN:,}"
        )
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"text has {len(text):,} characters; the most is {MAX_CHARACTERS:,}")
    if not pattern:
        raise ValueError("pattern is empty: every place matches it")
    check_pattern(pattern, regex=True)
    data = text.encode("utf-8", "surrogatepass")
    expression = compile_expression(
        pattern.encode("utf-8", "surrogatepass"), ignore_case=ignore_case
    )
    result: list[dict[str, object]] = []
    at = read = characters = 0
    while at <= len(data) and len(result) <= MAX_MATCHES:
        match = expression.search(data, at, len(data))
        if match is None:
            break
        start, end = match.span()
        characters += len(data[read:start].decode("utf-8", "surrogatepass"))
        read = start
        matched = data[start:end].decode("utf-8", "surrogatepass")
        result.append(
            {"start": characters, "end": characters + len(matched), "text": matched[:SHOWN]}
        )
        at = end if end > start else _next_character(data, end)
    return {"matches": result[:MAX_MATCHES], "more": len(result) > MAX_MATCHES}


def _next_character(data: bytes, at: int) -> int:
    at += 1
    while at < len(data) and data[at] & 0xC0 == 0x80:
        at += 1
    return at


def _lines(text: str, name: str) -> list[str]:
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"{name} has {len(text):,} characters; the most is {MAX_CHARACTERS:,}")
    lines = text.splitlines()
    if len(lines) > MAX_LINES:
        raise ValueError(f"{name} has {len(lines):,} lines; the most is {MAX_LINES:,}")
    return lines


Edit = tuple[str, int, int]
"""` `, `-` or `+`, and the numbers of the line in the old and in the new text."""


def _edits(old: list[str], new: list[str]) -> list[Edit]:
    """Return the lines that are the same, removed and added, in order."""
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    middle = _middle(old[head : len(old) - tail], new[head : len(new) - tail])
    same = [(" ", at, at) for at in range(head)]
    ends = len(old) - tail, len(new) - tail
    after = [(" ", ends[0] + at, ends[1] + at) for at in range(tail)]
    return [*same, *((sign, a + head, b + head) for sign, a, b in middle), *after]


def _middle(old: list[str], new: list[str]) -> list[Edit]:
    """Return the shortest list of edits (Myers); after MAX_DIFFERENCES, all is replaced."""
    numbers: dict[str, int] = {}
    a = [numbers.setdefault(line, len(numbers)) for line in old]
    b = [numbers.setdefault(line, len(numbers)) for line in new]
    ends, trace = {1: 0}, []
    for edits in range(min(len(a) + len(b), MAX_DIFFERENCES) + 1):
        trace.append({k: ends.get(k, -1) for k in range(-edits - 1, edits + 2)})
        for k in range(-edits, edits + 1, 2):
            down = k == -edits or (k != edits and ends.get(k - 1, -1) < ends.get(k + 1, -1))
            x = ends[k + 1] if down else ends[k - 1] + 1
            while x < len(a) and 0 <= x - k < len(b) and a[x] == b[x - k]:
                x += 1
            ends[k] = x
            if x >= len(a) and x - k >= len(b):
                return _traced(trace, len(a), len(b))
    removed = [("-", at, 0) for at in range(len(a))]
    return [*removed, *(("+", len(a), at) for at in range(len(b)))]


def _traced(trace: list[dict[int, int]], x: int, y: int) -> list[Edit]:
    """Return the edits on the way that led to the ends of both texts."""
    result: list[Edit] = []
    for edits in range(len(trace) - 1, -1, -1):
        ends, k = trace[edits], x - y
        down = k == -edits or (k != edits and ends.get(k - 1, -1) < ends.get(k + 1, -1))
        before = k + 1 if down else k - 1
        start = ends.get(before, 0) if edits else 0
        from_x, from_y = start, start - before if edits else 0
        while x > from_x and y > from_y:
            x, y = x - 1, y - 1
            result.append((" ", x, y))
        if edits:
            result.append(("+", x, from_y) if down else ("-", from_x, y))
            x, y = from_x, from_y
    return result[::-1]


def _hunks(edits: list[Edit], old: list[str], new: list[str], context: int) -> Any:
    """Yield a unified diff."""
    changed = [at for at, (sign, _, _) in enumerate(edits) if sign != " "]
    spans: list[list[int]] = []
    for at in changed:
        low, high = max(0, at - context), min(len(edits), at + context + 1)
        if spans and low <= spans[-1][1]:
            spans[-1][1] = high
        else:
            spans.append([low, high])
    for low, high in spans:
        part = edits[low:high]
        counts = [sum(sign != other for sign, _, _ in part) for other in "+-"]
        yield f"@@ -{part[0][1] + 1},{counts[0]} +{part[0][2] + 1},{counts[1]} @@"
        for sign, a, b in part:
            yield sign + (new[b] if sign == "+" else old[a])
