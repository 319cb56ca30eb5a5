"""What a model wrote, taken apart: its cells of code, and an answer given in plain prose."""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass
from itertools import islice
from typing import Any

OPENING = re.compile(r"^[ \t]{0,12}(`{3,}|~{3,})[ \t]*([\w.+-]*)[^\n`]*$")
LANGUAGES = frozenset({"", "python", "python3", "py", "repl", "ipython", "tool_code", "code"})
TAGS = ("<code>", "</code>")
ANSWER = re.compile(r"^[ \t]*(FINAL|FINAL_VAR)\(", re.MULTILINE)
MOST_BLOCKS = 20
LONGEST = 1 << 20
QUOTES = ("'''", '"""', "'", '"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A model's turn."""

    cells: tuple[str, ...] = ()
    answer: str | None = None
    """What stood in FINAL(...) outside of code."""
    variable: str | None = None
    """What stood in FINAL_VAR(...) outside of code."""


def parse(text: str) -> Reply:
    """Cells in their order, and an answer outside of them if there is one."""
    text = text[:LONGEST]
    cells, prose = _fenced(text.splitlines())
    if not cells:
        cells, prose = _tagged(text)
    name, inner = _answer(prose)
    if not cells and name is None and _is_code(text):
        cells = [text]
    return Reply(
        cells=tuple(cell for cell in cells if cell.strip())[:MOST_BLOCKS],
        answer=_literal(inner) if name == "FINAL" else None,
        variable=inner.strip().strip("\"'") if name == "FINAL_VAR" else None,
    )


def _fenced(lines: list[str]) -> tuple[list[str], str]:
    """The cells, and the prose between them. A fence that is never closed goes to the end."""
    cells, prose, at = [], [], 0
    while at < len(lines):
        fence = OPENING.match(lines[at])
        if fence is None:
            prose.append(lines[at])
            at += 1
            continue
        end = _closing(lines, at + 1, fence.group(1))
        if fence.group(2).lower() in LANGUAGES:
            cells.append(_dedented(lines[at + 1 : end], len(lines[at]) - len(lines[at].lstrip())))
        at = end + 1
    return cells, "\n".join(prose)


def _tagged(text: str) -> tuple[list[str], str]:
    """Cells between tags, as some models write them."""
    opening, closing = TAGS
    head, *parts = text.split(opening)
    pairs = [part.partition(closing) for part in parts]
    cells = [code.strip("\n") for code, closed, _ in pairs if closed]
    return cells, head + "".join(rest if closed else code for code, closed, rest in pairs)


def _closing(lines: list[str], start: int, fence: str) -> int:
    """Where a block ends: the first fence, or a later one if only then the code is whole."""
    closings = (
        number
        for number in range(start, len(lines))
        if (line := lines[number].strip()).startswith(fence) and not line.strip(fence[0])
    )
    ends = list(islice(closings, 3))
    if not ends:
        return len(lines)
    if not _parses("\n".join(lines[start : ends[0]])):
        for end in ends[1:]:
            if _parses("\n".join(lines[start:end])):
                return end
    return ends[0]


def _dedented(lines: list[str], indent: int) -> str:
    """A block within a list is indented as its fence is."""
    margin = " " * indent
    if indent and all(line.startswith(margin) or not line.strip() for line in lines):
        lines = [line[indent:] for line in lines]
    return "\n".join(lines)


def _answer(prose: str) -> tuple[str | None, str]:
    found = ANSWER.search(prose)
    if found is None:
        return None, ""
    return found.group(1), _until_closed(prose, found.end())


def _until_closed(text: str, start: int) -> str:
    """What stands between a bracket that is open at `start` and its other half."""
    depth, at = 1, start
    while at < len(text):
        if quote := next((one for one in QUOTES if text.startswith(one, at)), None):
            at = _after_string(text, at, quote)
            continue
        depth += (text[at] == "(") - (text[at] == ")")
        if not depth:
            return text[start:at]
        at += 1
    return text[start:]


def _after_string(text: str, at: int, quote: str) -> int:
    """Behind a string; an apostrophe that opens none is passed over."""
    end = at + len(quote)
    while (end := text.find(quote, end)) >= 0:
        if "\n" in text[at:end] and len(quote) == 1:
            break
        if text[end - 1] != "\\":
            return end + len(quote)
        end += 1
    return at + 1


def _literal(inner: str) -> str:
    """A quoted answer as its text; one that is not quoted as it stands."""
    try:
        value: Any = ast.literal_eval(inner.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return inner.strip()
    return value if isinstance(value, str) else inner.strip()


def _is_code(text: str) -> bool:
    """Whether a text without any fence is a program: it parses, and it does something."""
    tree = _parses(text)
    return tree is not None and any(
        isinstance(node, ast.Call | ast.Assign | ast.AugAssign | ast.For | ast.Import)
        for node in ast.walk(tree)
    )


def _parses(code: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except (SyntaxError, ValueError, MemoryError, RecursionError, SystemError):
        return None
