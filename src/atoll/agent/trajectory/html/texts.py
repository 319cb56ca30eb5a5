"""Prepares texts for a page: cleans, escapes and cuts them, and highlights code.

# SECURITY: every text of a page passes `one` or `many` here. They return markup in which every
# character of the text is escaped, for elements and for attributes.
"""

from __future__ import annotations

import html
import keyword
import re

from atoll.agent.trajectory import terminal_text

PAGE_CAP = 8_000_000
"""Characters of markup for texts on a page; beyond them, each text keeps its first SHORT."""
SHORT = 200
_PYTHON = re.compile(
    r"(?P<c>\#[^\n]*)"
    r"|(?P<s>\b[rRbBfFuU]{0,2}(?:'''.*?(?:'''|\Z)|\"\"\".*?(?:\"\"\"|\Z)"
    r"|'(?:\\.|[^'\\\n])*'?|\"(?:\\.|[^\"\\\n])*\"?)"
    r"|'''.*?(?:'''|\Z)|\"\"\".*?(?:\"\"\"|\Z)|'(?:\\.|[^'\\\n])*'?|\"(?:\\.|[^\"\\\n])*\"?)"
    rf"|(?P<k>\b(?:{'|'.join(keyword.kwlist)})\b)"
    r"|(?P<n>\b\d[\w.]*)",
    re.DOTALL,
)


def one(text: str, cap: int = 300) -> str:
    """Return a text as one line of markup."""
    return html.escape(terminal_text.clip(terminal_text.line(text[: 4 * cap]), cap))


class Texts:
    """The long texts of one page, with the number of characters that still fit."""

    def __init__(self, room: int = PAGE_CAP) -> None:
        self._room = room

    def many(self, text: str, cap: int) -> str:
        """Return a text as markup for a <pre>, with a note of how much is missing."""
        kept, rest = self._cut(text, cap)
        return self._counted(html.escape(kept)) + rest

    def code(self, text: str, cap: int) -> str:
        """Return Python as markup for a <pre>, with comments, strings, keywords, numbers marked."""
        kept, rest = self._cut(text, cap)
        return self._counted(_marked(kept)) + rest

    def _cut(self, text: str, cap: int) -> tuple[str, str]:
        allowed = min(cap, max(self._room, SHORT))
        kept = "\n".join(terminal_text.lines(text[:allowed]))
        missing = len(text) - allowed
        if missing <= 0:
            return kept, ""
        return kept, f'<span class="cut">… {missing:,} more characters</span>'

    def _counted(self, markup: str) -> str:
        self._room -= len(markup)
        return markup


def _marked(code: str) -> str:
    parts, done = [], 0
    for found in _PYTHON.finditer(code):
        parts.append(html.escape(code[done : found.start()]))
        parts.append(f'<span class="{found.lastgroup}">{html.escape(found[0])}</span>')
        done = found.end()
    return "".join([*parts, html.escape(code[done:])])
