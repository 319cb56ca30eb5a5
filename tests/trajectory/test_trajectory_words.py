"""Numbers and data of a trajectory in words."""

from __future__ import annotations

import pytest

from atoll.agent.trajectory import words


@pytest.mark.parametrize(
    ("share", "said"),
    [(0, "0 %"), (0.0004, "<0.1 %"), (0.001, "0.1 %"), (0.5, "50 %"), (1, "100 %")],
)
def test_a_share_is_never_nothing_unless_it_is(share, said):
    assert words.share(share) == said


def test_what_is_not_set_is_left_out():
    assert words.pairs({"usd": None, "calls": 1_000, "deep": {"x": None, "y": 1}}) == (
        "calls 1,000 · deep (y 1)"
    )
