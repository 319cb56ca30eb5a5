"""Displays as a guest may send them: what its runtime never would is refused."""

from __future__ import annotations

import base64

import pytest

from atoll import Display
from atoll.sandbox import result_fields


def row(media_type="text/html", data=b"<b>"):
    return [media_type, base64.b64encode(data).decode()]


def test_rows_become_displays():
    assert result_fields.read_displays([row(), row("image/png", b"")]) == (
        Display(media_type="text/html", data=b"<b>"),
        Display(media_type="image/png", data=b""),
    )


@pytest.mark.parametrize(
    "rows",
    [
        None,
        "text/html",
        {},
        [None],
        [["text/html"]],
        [["text/html", "a", "b"]],
        [["text/html", "***="]],
        [["text/html", 7]],
        [["text/html", "é"]],
        [[["text/html"], "QQ=="]],
        [row("application/x-sh")],
        [row()] * 17,
        [row(data=b"x" * ((4 << 20) + 1))],
        [row(data=b"x" * (3 << 20))] * 3,
    ],
)
def test_anything_else_is_refused(rows):
    with pytest.raises((ValueError, TypeError)):
        result_fields.read_displays(rows)
