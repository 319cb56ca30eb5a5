"""Compiles cells that are not plain Python: with `await` outside functions, or with magics."""

from __future__ import annotations

import _ast

from . import magics
from .splitting import split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .splitting import Compiled


def compile_cell(code: str, name: str) -> Compiled:
    """Compile a cell that has failed as plain Python; SyntaxError if it is not a cell either."""
    try:
        return split(code, name, _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError:
        translated = magics.translate(code)
        if translated is None:
            raise
    for command in translated[1]:
        if command.kind == magics.LINE and command.name == "time":
            split("\n" * (command.line - 1) + command.rest, name)
    return split(translated[0], name, _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
