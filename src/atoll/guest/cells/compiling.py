"""Compiles cells that are not plain Python: with `await` outside functions, with magics, pasted."""

from __future__ import annotations

import _ast
import textwrap

from . import magics
from .splitting import split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .splitting import Compiled

FENCE = "```"


def unwrap(code: str) -> str:
    """Return pasted code without what surrounds it, with the same lines: IPython does so too.

    That is a byte order mark, the fence of a Markdown block, and the indentation of all lines.
    """
    lines = textwrap.dedent(code.lstrip("\ufeff")).split("\n")
    filled = [number for number, line in enumerate(lines) if line.strip()]
    if filled and lines[filled[0]].startswith(FENCE):
        lines[filled[0]] = ""
        if lines[filled[-1]].rstrip() == FENCE:
            lines[filled[-1]] = ""
    return textwrap.dedent("\n".join(lines))


def compile_cell(code: str, name: str) -> Compiled:
    """Compile a cell that has failed as plain Python; SyntaxError if it is not a cell either."""
    try:
        return split(code, name, _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError as exc:
        translated = magics.translate(code)
        if translated is None:
            _add_line(exc, code)
            raise
    for command in translated[1]:
        if command.kind == magics.LINE and command.name == "time":
            split("\n" * (command.line - 1) + command.rest, name)
    return split(translated[0], name, _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def _add_line(exc: SyntaxError, code: str) -> None:
    """Give an error its line: the compiler reads that from a file, where the parser has it."""
    lines = code.splitlines()
    if exc.text is None and exc.lineno and exc.lineno <= len(lines):
        exc.text = lines[exc.lineno - 1]
