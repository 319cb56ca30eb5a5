"""The ledger: what was searched and shown, as it was, in bounded memory."""

from __future__ import annotations

import random
import threading
from itertools import pairwise

import pytest
from costs import least_cpu_seconds

from atoll.errors import ConfigError
from atoll.sandbox.context import Context
from atoll.search import spans_shown
from atoll.search.coverage import CELLS, CoverageLog, Ranges
from atoll.search.index import ContextIndex
from atoll.search.spans_shown import Shown


@pytest.mark.parametrize("seed", range(20))
def test_ranges_are_the_set_of_what_was_added(seed):
    dice = random.Random(seed)
    ranges, expected = Ranges(), set()
    for _ in range(60):
        start = dice.randrange(200)
        end = start + dice.randrange(12)
        ranges.add(start, end)
        expected |= set(range(start, end))
    made = list(ranges)
    assert {at for start, end in made for at in range(start, end)} == expected
    assert all(one[1] < other[0] for one, other in pairwise(made))
    assert ranges.total == len(expected)
    for start in range(0, 200, 7):
        assert ranges.meets(start, start + 3) == bool(expected & set(range(start, start + 3)))


def test_of_very_many_ranges_the_smallest_are_forgotten_and_nothing_is_made_up():
    ranges = Ranges(most=100)
    for number in range(10_000):
        size = 999 if number % 500 == 0 else 10
        ranges.add(1_000 * number, 1_000 * number + size)
        assert len(ranges) <= 100
    assert ranges.total <= 20 * 999 + 80 * 10
    large = [(500_000 * number, 500_000 * number + 999) for number in range(20)]
    assert set(large) <= set(ranges)


def test_an_observation_made_to_be_slow_costs_little_and_claims_nothing(seen):
    seen.note([(number, "a" * 2_000) for number in range(2_000)])
    slow = (
        "\n".join("a" * 30 + f"b{number}" for number in range(220)),
        "1" * 200_000,
        "\n".join(f"no line of this kind {n:06d}" for n in range(30_000)),
    )
    assert [seen.match(text) for text in slow] == [(), (), ()]
    taken = least_cpu_seconds(lambda: [seen.match(text) for text in slow])
    plain = least_cpu_seconds(lambda: sum(range(1_000_000)))
    assert taken < 400 * plain, "it was minutes"


def test_coverage_says_how_much_was_searched_and_shown():
    ledger = CoverageLog(6_400)
    ledger.scan(0, 3_200)
    ledger.show(0, 100)
    ledger.show(6_300, 10_000)
    coverage = ledger.coverage()
    assert (coverage.scanned, coverage.shown) == (3_300, 200)
    assert coverage.map == "#" + "-" * 31 + "." * 31 + "#"
    assert coverage.render() == (
        f"[{coverage.map}] shown 3.1%, searched 51.6% of 6,400 characters "
        "(# shown  - searched  . unseen)"
    )
    assert coverage.to_dict() == {
        "length": 6_400, "scanned": 3_300, "shown": 200, "scanned_share": 3_300 / 6_400,
        "shown_share": 200 / 6_400, "map": coverage.map,
    }  # fmt: skip
    assert ledger.ranges("shown") == ((0, 100), (6_300, 6_400))
    with pytest.raises(ConfigError, match="use 'scanned' or 'shown'"):
        ledger.ranges("seen")


@pytest.mark.parametrize("length", [0, 1, 5, CELLS, 10**9])
def test_all_and_nothing_are_said_as_such(length):
    ledger = CoverageLog(length)
    assert set(ledger.coverage().map) <= {"."}
    ledger.show(0, length)
    coverage = ledger.coverage()
    assert coverage.map == "#" * min(length, CELLS)
    assert coverage.shown_share == 1.0
    assert "shown 100.0%" in coverage.render()


def test_a_little_is_not_nothing_and_almost_all_is_not_all():
    ledger = CoverageLog(10**9)
    ledger.show(5, 6)
    ledger.scan(1, 10**9)
    assert "shown <0.1%, searched >99.9%" in ledger.coverage().render()


def test_a_ledger_takes_from_many_threads_at_once():
    ledger = CoverageLog(8_000)

    def fill(first):
        for at in range(first, 8_000, 8):
            ledger.show(at, at + 1)

    threads = [threading.Thread(target=fill, args=(first,)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.ranges("shown") == ((0, 8_000),)


LINES = [f"line {number} has some words that tell it from others\n" for number in range(50)]
TEXT = "".join(LINES)


@pytest.fixture
def seen():
    context = Context.from_text(TEXT)
    yield Shown(ContextIndex.of(context))
    context.close()


def place(number):
    start = TEXT.index(LINES[number])
    return start, start + len(LINES[number])


def covered(spans):
    ranges = Ranges()
    for span in spans:
        ranges.add(*span)
    return list(ranges)


def test_only_the_lines_that_are_in_the_observation_count(seen):
    seen.note([(0, TEXT)])
    assert covered(seen.match(f"7: {LINES[7]}and\n{LINES[9]}")) == [place(7), place(9)]
    assert seen.match("nothing of it") == ()


def test_a_piece_shown_whole_counts_whole(seen):
    start, end = place(3)[0], place(5)[1]
    seen.note([(start, TEXT[start:end])])
    assert covered(seen.match(f"here:\n{TEXT[start:end]}that was it")) == [(start, end)]


def test_the_part_of_a_line_that_was_shown_counts(seen):
    seen.note([(0, TEXT)])
    start, _ = place(4)
    assert covered(seen.match(TEXT[start : start + 30])) == [(start, start + 30)]


def test_short_lines_count_only_as_lines():
    context = Context.from_text("}\nab\n")
    seen = Shown(ContextIndex.of(context))
    seen.note([(0, "}\nab\n")])
    assert seen.match("{x} is about") == ()
    assert covered(seen.match("ab")) == [(2, 5)]


def test_lines_that_code_cut_out_by_itself_are_looked_up(seen):
    assert covered(seen.match(LINES[8])) == [(place(8)[0], place(8)[1] - 1)]


def test_lookups_are_bounded(seen, monkeypatch):
    monkeypatch.setattr(spans_shown, "MAX_LOOKUPS", 3)
    assert seen.match("they are:\n" + TEXT) == ((0, len(TEXT)),), "a long passage is one"
    lines = TEXT.splitlines()
    assert len(seen.match("\n--\n".join(lines))) == 3
    monkeypatch.setattr(spans_shown, "LOOKUP_SECONDS", 0)
    assert seen.match(TEXT) == ()
    monkeypatch.setattr(spans_shown, "LOOKUP_SECONDS", 60)
    monkeypatch.setattr(spans_shown, "LARGEST_LOOKUP", 10)
    assert seen.match("\n--\n".join(lines)) == (), "single lines of a large context"
    assert seen.match(TEXT) == ((0, len(TEXT)),), "but passages of one of any size"


def test_what_is_remembered_is_bounded(seen, monkeypatch):
    monkeypatch.setattr(spans_shown, "MAX_PIECES", 10)
    seen.note([(number, "x" * 100) for number in range(50)])
    assert [start for start, _ in seen._pieces] == list(range(40, 50))
    monkeypatch.setattr(spans_shown, "MAX_CHARACTERS", 250)
    seen.note([(99, "y" * 1_000)])
    assert [(start, len(text)) for start, text in seen._pieces] == [(99, 250)]
    assert seen._characters == 250
