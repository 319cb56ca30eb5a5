"""The research of a run as a graph: a row for each call, lines to parents, arcs to references.

SVG without scripts: positions are computed numbers, texts are escaped by `one`, colours are CSS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.agent.trajectory import research
from atoll.agent.trajectory.html.texts import one

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.agent.trajectory.events import Explored
    from atoll.agent.trajectory.research import Row

WIDE, ROW, STEP = 960, 34, 22
"""Units of the drawing: its width, the height of a row, the indentation of a level."""
MARGIN, ARC, BOX = 64, 56, 46
"""Room at the left for arcs, the widest arc, and the width of a node's box."""
LETTER = 6.6
"""Width of a letter at the size of the labels."""


def graph(event: Explored) -> Iterator[str]:
    """Yield a heading, the graph, and a legend; nothing if there are no calls."""
    rows = research.rows(event)
    if not rows:
        return
    yield f'<section>\n<h2>Research</h2>\n<p class="note">{one(research.summary(event))}</p>\n'
    height = ROW * len(rows) + 8
    told = f"{len(rows)} calls and what they refer to"
    yield f'<div class="wide"><svg class="graph" role="img" aria-label="{told}" '
    yield f'viewBox="0 0 {WIDE} {height}">\n'
    for at, row in enumerate(rows):
        yield from _lines(at, row, rows)
    for at, row in enumerate(rows):
        yield _node(at, row)
    yield "</svg></div>\n"
    yield (
        '<p class="legend"><i class="analyzed"></i> analyzed <i class="pending"></i> pending '
        '<i class="stale"></i> stale; arcs: refers to, dashed: means much the same</p>\n'
        "</section>\n"
    )


def _lines(at: int, row: Row, rows: list[Row]) -> Iterator[str]:
    x, y = _x(row), _y(at)
    if row.parent is not None:
        left = _x(rows[row.parent]) + 10
        yield f'<path class="line" d="M{left} {_y(row.parent) + 11}V{y}H{x}"/>\n'
    for kind, places in (("refers", row.references), ("similar", row.similar)):
        for place in places:
            if place != at:
                yield _arc(kind, at, place, rows)


def _arc(kind: str, at: int, to: int, rows: list[Row]) -> str:
    """Return a curve at the left; it is wider if its ends are farther apart."""
    x, y, left, top = _x(rows[at]), _y(at), _x(rows[to]), _y(to)
    bend = max(4, MARGIN - 12 - min(ARC, 8 * abs(at - to)))
    return f'<path class="{kind}" d="M{x} {y}C{bend} {y} {bend} {top} {left} {top}"/>\n'


def _node(at: int, row: Row) -> str:
    x, y = _x(row), _y(at)
    room = int((WIDE - x - BOX - 16) / LETTER)
    call, found = one(row.call, min(room, 110)), one(row.found, room)
    text = x + BOX + 8
    return (
        f"<g><title>{one(f'{row.id} ({row.status}): {row.call}', 300)}</title>"
        f'<rect class="{row.status}" x="{x}" y="{y - 11}" width="{BOX}" height="22" rx="5"/>'
        f'<text class="id" x="{x + BOX / 2:g}" y="{y + 4}">{one(row.id, 8)}</text>'
        f'<text class="call" x="{text}" y="{y - 2}">{call}</text>'
        f'<text class="found" x="{text}" y="{y + 12}">{found}</text></g>\n'
    )


def _x(row: Row) -> int:
    return MARGIN + STEP * row.level


def _y(at: int) -> int:
    return ROW * at + ROW // 2 + 4
