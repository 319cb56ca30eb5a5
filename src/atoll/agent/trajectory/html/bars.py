"""Bars of a page as SVG: the time of an event, and the coverage of a context. Numbers only."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from atoll.agent.trajectory import words
from atoll.agent.trajectory.html.texts import one

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.agent.trajectory.tree import Node

_CLASSES = {"-": "scanned", "#": "shown"}


def time(node: Node, start_ms: float, end_ms: float) -> str:
    """Return a bar that shows when a node ran, between two times."""
    whole = max(end_ms - start_ms, 0.001)
    left = min(max((node.start_ms - start_ms) / whole, 0), 1) * 100
    wide = min(max((node.end_ms - node.start_ms) / whole * 100, 0.8), 100 - left or 0.8)
    return (
        '<svg class="time" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="on" x="{min(left, 99.2):.2f}" width="{wide:.2f}" height="6"/></svg>'
    )


def coverage(told: Mapping[str, Any]) -> str:
    """Return the coverage map of a context, and its text form."""
    cells, text = words.cells(told), one(words.seen(told))
    if not cells:
        return f'<p class="seen">{text}</p>\n'
    at, drawn = 0, []
    for kind, group in groupby(cells):
        wide = len(list(group))
        if kind in _CLASSES:
            drawn.append(f'<rect class="{_CLASSES[kind]}" x="{at}" width="{wide}" height="6"/>')
        at += wide
    return (
        f'<svg class="map" role="img" aria-label="{text}" viewBox="0 0 {at} 6" '
        f'preserveAspectRatio="none">{"".join(drawn)}</svg>\n<p class="seen">{text}</p>\n'
        '<p class="legend"><i class="shown"></i> shown to a model <i class="scanned"></i> scanned '
        'by code <i class="unseen"></i> not seen</p>\n'
    )
