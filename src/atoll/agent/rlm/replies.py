"""Read a model's reply: its cells of code, and an answer given in prose. Linear in its length.

A reply is untrusted text of any shape. Every scan here passes over each character a fixed number
of times, and Python's own parser sees only short texts: it can be slow on nested brackets.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from dataclasses import dataclass
from typing import NamedTuple

OPENING = re.compile(r"[ \t]{0,12}+(`{3,}+|~{3,}+)[ \t]*+([\w.+-]*+)[^\n`]*+\Z")
"""Possessive, so that nothing is tried twice."""
LANGUAGES = frozenset({"", "python", "python3", "py", "repl", "ipython", "tool_code", "code"})
DATA_FORMATS = frozenset(
    """
    json jsonl yaml yml toml ini csv tsv xml html text txt plain plaintext markdown md
""".split()
)
"""Blocks of these may be an answer; a block in another language is code."""
TAGS = ("<code>", "</code>")
THOUGHTS = re.compile(r"\s*+<(think|thinking|thought|reasoning)>")
END_OF_THOUGHTS = re.compile(
    r"^[ \t]*+</(?:think|thinking|thought|reasoning)>[ \t]*+$", re.MULTILINE
)
TOOL_NAMES, TOOL_ARGUMENTS = {"name", "tool", "function"}, {"arguments", "parameters", "args"}
ANSWER = re.compile(r"^[ \t]*(FINAL|FINAL_VAR)\(", re.MULTILINE)
MAX_BLOCKS = 20
LONGEST = 1 << 20
LONGEST_PROGRAM, MAX_BRACKETS = 20_000, 500
"""A reply without a fence is parsed to see whether it is code, if it is no longer than this."""
TRIPLES = ("'''", '"""')
_STRING_OR_COMMENT = re.compile(r"""'''|\"\"\"|'(?:[^'\\]|\\.)*'?|"(?:[^"\\]|\\.)*"?|\#.*""")
"""The closing quotes are optional, so that nothing is tried twice."""
_ESCAPED = re.compile(r"\\.|'''|\"\"\"", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A model's turn."""

    cells: tuple[str, ...] = ()
    answer: str | None = None
    """The argument of FINAL(...) outside of code."""
    variable: str | None = None
    """The argument of FINAL_VAR(...) outside of code; with an answer, a name that may be one."""
    prose: str = ""
    """The text outside of cells."""
    is_open: bool = False
    """Whether the last cell has no end: if the reply was cut, that cell is not whole."""


def parse(text: str, *, is_cut: bool = False) -> Reply:
    """Return the cells in their order, and an answer outside of them if there is one.

    Of a reply that was cut off, a cell that has no end is left out.
    """
    text = text[:LONGEST]
    blocks = _fenced(text.splitlines())
    cells, prose, is_open = blocks.cells, blocks.prose, blocks.is_open
    if not cells:
        cells, prose, is_open = _tagged(text)
        if not cells and (blocks.is_all_code or _is_tool_call(text)):
            prose = ""
    name, inner, prose = _answer(prose, is_cut=is_cut)
    if not cells and name is None and prose and _is_code(text):
        cells, prose, is_open = [text], "", True
    if is_cut and is_open and cells:
        cells.pop()
    if name == "FINAL" and _has_quotes(inner):
        cells, name = [*cells, f"FINAL({inner})"], None  # so that the quotes are checked
    return Reply(
        cells=tuple(cell for cell in cells if cell.strip())[:MAX_BLOCKS],
        answer=_literal(inner) if name == "FINAL" else None,
        variable=_variable(name, inner),
        prose=prose.strip(),
        is_open=is_open,
    )


def without_thoughts(text: str) -> str:
    """Return a reply without the reasoning that some servers leave at its beginning, in tags.

    Reasoning without an end is all that there is. A server may have sent the first tag itself: then
    a line with the last tag alone ends the reasoning.
    """
    if END_OF_THOUGHTS.search(text) and not THOUGHTS.match(text):
        text = f"<think>{text}"
    while opened := THOUGHTS.match(text):
        tag = f"</{opened[1]}>"
        text = text[opened.end() :].partition(tag)[2]
    return text


def plain_answer(text: str) -> str:
    """Return the answer in a reply that was to be plain text; "" if it is nothing but code."""
    reply = parse(text)
    if reply.answer is not None:
        return reply.answer
    for cell in reply.cells:  # a model may write FINAL("...") in a block all the same
        name, inner, _ = _answer(cell)
        if name == "FINAL" and inner.strip()[:1] in ("'", '"'):
            return _literal(inner)
    return "" if reply.variable is not None else reply.prose


class _Blocks(NamedTuple):
    """The fenced blocks of a reply."""

    cells: list[str]
    prose: str
    """The text between the blocks."""
    is_open: bool
    """Whether the last fence is never closed."""
    is_all_code: bool
    """Whether there is nothing but blocks of code, in any language."""


def _fenced(lines: list[str]) -> _Blocks:
    cells, prose, at, is_open = [], [], 0, False
    fences, languages = _Fences(lines), set[str]()
    while at < len(lines):
        fence = OPENING.match(lines[at])
        if fence is None:
            prose.append(lines[at])
            at += 1
            continue
        end = fences.closing(at + 1, fence.group(1))
        is_open = end == len(lines)
        languages.add(fence.group(2).lower())
        if fence.group(2).lower() in LANGUAGES:
            cells.append(_dedented(lines[at + 1 : end], len(lines[at]) - len(lines[at].lstrip())))
        at = end + 1
    outside = "\n".join(prose)
    is_all_code = bool(languages) and not languages & DATA_FORMATS and not outside.strip()
    return _Blocks(cells, outside, is_open, is_all_code)


def _tagged(text: str) -> tuple[list[str], str, bool]:
    """Return cells between tags, as some models write them."""
    opening, closing = TAGS
    head, *parts = text.split(opening)
    pairs = [part.partition(closing) for part in parts]
    cells = [code.strip("\n") for code, closed, _ in pairs if closed]
    prose = head + "".join(rest if closed else code for code, closed, rest in pairs)
    return cells, prose, False


def _is_tool_call(text: str) -> bool:
    """Return whether a reply is a call in JSON, as models write it that were trained on tools."""
    text = text.strip().removeprefix("<tool_call>").removesuffix("</tool_call>").strip()
    if not text.startswith("{") or len(text) > LONGEST_PROGRAM:
        return False
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return bool(call.keys() & TOOL_NAMES and call.keys() & TOOL_ARGUMENTS)


class _Fences:
    """Finds the fence that ends a block: the first that is not inside a triple-quoted string.

    If a string is found to have no end, the first fence ends this block and all later ones:
    otherwise each block would be searched to the end of the reply.
    """

    def __init__(self, lines: list[str]) -> None:
        self._lines, self._heeds_strings = lines, True

    def closing(self, start: int, fence: str) -> int:
        """Return the line of the closing fence; the number of lines if it is missing."""
        lines, first, triple = self._lines, len(self._lines), ""
        for number in range(start, len(lines)):
            line = lines[number].strip()
            if line.startswith(fence) and not line.strip(fence[0]):
                if not triple:
                    return number
                first = min(first, number)
            if self._heeds_strings:
                triple = _triple_after(lines[number], triple)
        self._heeds_strings = False
        return first


def _triple_after(line: str, triple: str) -> str:
    """Return the triple quote that is open at the end of a line; "" if none is."""
    at = 0
    while at < len(line):
        if triple:
            at, triple = _skip_to(line, at, triple)
            continue
        match = _STRING_OR_COMMENT.search(line, at)
        if match is None:
            break
        triple = match[0] if match[0] in TRIPLES else ""
        at = match.end()
    return triple


def _skip_to(line: str, at: int, triple: str) -> tuple[int, str]:
    for match in _ESCAPED.finditer(line, at):
        if match[0] == triple:
            return match.end(), ""
    return len(line), triple


def _dedented(lines: list[str], indent: int) -> str:
    """Return a block without the indentation of its fence, as in a list."""
    margin = " " * indent
    if indent and all(line.startswith(margin) or not line.strip() for line in lines):
        lines = [line[indent:] for line in lines]
    return "\n".join(lines)


def _answer(prose: str, *, is_cut: bool = False) -> tuple[str | None, str, str]:
    """Return FINAL or FINAL_VAR, what it is given, and the prose; one that was cut is left out.

    An answer whose quote or bracket never ends was cut: the first always, the second if the reply
    was. FINAL(FINAL(... is left out too: its argument is code.
    """
    match = ANSWER.search(prose)
    if match is None:
        return None, "", prose
    inner, closed = _until_closed(prose, match.end())
    was_cut = not closed and (is_cut or _quote_is_open(inner.strip()))
    if was_cut or ANSWER.match(inner):
        return None, "", prose[: match.start()]
    return match.group(1), inner, prose


def _quote_is_open(inner: str) -> bool:
    return inner[:1] in ("'", '"') and _Strings(inner).after(0) == 1


def _until_closed(text: str, start: int) -> tuple[str, bool]:
    """Return what stands between a bracket that is open at `start` and its other half.

    Also return whether there is an other half: else it is all the rest.
    """
    depth, at, strings = 1, start, _Strings(text)
    while at < len(text):
        if text[at] in "'\"":
            at = strings.after(at)
            continue
        depth += (text[at] == "(") - (text[at] == ")")
        if not depth:
            return text[start:at], True
        at += 1
    return text[start:], False


class _Strings:
    """Finds where string literals end.

    A quote without its other half is an apostrophe. That is remembered, as the quotes after it
    have no other half either: without it, a long run of escaped quotes is searched again from
    each of them.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._unclosed = dict.fromkeys(("'", '"', *TRIPLES), 0)

    def after(self, at: int) -> int:
        """Return where the literal that begins at `at` ends, or `at` + 1 if it is not closed."""
        triple = self._text[at : at + 3]
        for quote in (triple, self._text[at]) if triple in TRIPLES else (self._text[at],):
            if at >= self._unclosed[quote]:
                end = self._end(at + len(quote), quote)
                if end:
                    return end
        return at + 1

    def _end(self, at: int, quote: str) -> int:
        text, stops = self._text, (quote[0], "\\", "\n")
        while at < len(text):
            if text[at] == "\\":
                at += 2
            elif text[at] == "\n" and len(quote) == 1:
                break
            elif text[at] == stops[0] and text.startswith(quote, at):
                return at + len(quote)
            else:
                at += 1
        self._unclosed[quote] = max(at, self._unclosed[quote])
        return 0


def _literal(inner: str) -> str:
    """Return a quoted answer as its text; one that is not quoted as it stands."""
    inner = inner.strip()
    if inner[:1] not in ("'", '"') or _Strings(inner).after(0) != len(inner):
        return _first_argument(inner)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return str(ast.literal_eval(inner))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return inner


def _first_argument(inner: str) -> str:
    """Return the text of a literal that quotes follow; else all of it."""
    return _literal(inner[: _Strings(inner).after(0)]) if _has_quotes(inner) else inner


def _has_quotes(inner: str) -> bool:
    """Return whether the arguments of FINAL are a literal and quotes=..."""
    inner = inner.lstrip()
    if inner[:1] not in ("'", '"'):
        return False
    end = _Strings(inner).after(0)
    return re.match(r"\s*,\s*quotes\s*=", inner[end : end + 100]) is not None


def _variable(name: str | None, inner: str) -> str | None:
    """Return the variable that FINAL_VAR names; of FINAL, what may be the name of one."""
    if name == "FINAL_VAR":
        return inner.strip().strip("\"'")
    return inner.strip() if name == "FINAL" and inner.strip().isidentifier() else None


def _is_code(text: str) -> bool:
    """Return whether a text without any fence is a program: it parses, and it does something."""
    if len(text) > LONGEST_PROGRAM or _brackets(text) > MAX_BRACKETS:
        return False
    tree = _parsed(text)
    return tree is not None and any(
        isinstance(node, ast.Call | ast.Assign | ast.AugAssign | ast.For | ast.Import)
        for node in ast.walk(tree)
    )


def _brackets(text: str) -> int:
    return sum(map(text.count, "([{"))


def _parsed(code: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except (SyntaxError, ValueError, MemoryError, RecursionError, SystemError):
        return None
