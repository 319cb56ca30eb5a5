"""Counts, sizes and times as people read them."""

from __future__ import annotations

import pytest

from atoll.text.amounts import ago_text, counted, iso_time, size_text


def test_counts_have_a_singular_and_sizes_a_unit():
    assert [counted(number, "calls") for number in (0, 1, 2_000)] == [
        "0 calls",
        "1 call",
        "2,000 calls",
    ]
    assert [size_text(size) for size in (0, 2_500_000, 3 * 10**9)] == ["0.0 MB", "2.5 MB", "3.0 GB"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "just now"),
        (9.9, "just now"),
        (119, "119 s ago"),
        (120, "2 min ago"),
        (7_199, "119 min ago"),
        (7_200, "2 h ago"),
        (172_800, "2 d ago"),
    ],
)
def test_the_age_of_something_has_one_unit(seconds, text):
    assert ago_text(seconds) == text


@pytest.mark.parametrize("impossible", [1e30, -1e30, float("nan"), float("inf")])
def test_a_time_that_no_calendar_has_is_shown_as_the_first(impossible):
    assert iso_time(1.5) == "1970-01-01T00:00:01.500Z"
    assert iso_time(impossible) == "1970-01-01T00:00:00.000Z"
