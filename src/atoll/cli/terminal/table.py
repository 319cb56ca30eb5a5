"""Rows in columns, for lists that people read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.text.amounts import printable

if TYPE_CHECKING:
    from collections.abc import Sequence


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a head and rows as lines with aligned columns; characters that steer are replaced."""
    cells = [[printable(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    return "\n".join(lines)
