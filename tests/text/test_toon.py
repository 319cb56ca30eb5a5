"""Values as text for a model: the shorter of two forms, and nothing in them gets lost unsaid."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import random
import sys

import pytest

from atoll.guest.shared import values
from atoll.text.toon import LONGEST_INT_BITS, to_text

pytestmark = pytest.mark.spec("R4.17")

TABLE = [{"id": number, "name": f"n{number}", "price": number * 1.5} for number in range(20)]
NESTED = [{"id": 1, "tags": [["a", 1], ["b", 2]]}, {"name": "x", "tags": [[], [3]]}]


def test_a_table_names_its_columns_once():
    pytest.importorskip("toons")
    assert to_text(TABLE).startswith("[20]{id,name,price}:\n  0,n0,0\n  1,n1,1.5\n")


def test_nested_rows_are_json_as_that_is_shorter():
    assert to_text(NESTED) == json.dumps(NESTED, separators=(",", ":"))


def test_without_toon_it_is_compact_json(monkeypatch):
    as_json = json.dumps(TABLE, separators=(",", ":"))
    assert to_text(TABLE, toon=False) == as_json
    monkeypatch.setitem(sys.modules, "toons", None)
    assert to_text(TABLE) == as_json


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        ({}, "{}"),
        ([], "[]"),
        ((1, (2, 3)), "[1,[2,3]]"),
        ({3, 1, 2}, '{"$set":[1,2,3]}'),
        (frozenset(), '{"$set":[]}'),
        (b"PNG\x00\xff'", '{"$bytes":"PNG\\\\x00\\\\xff\'"}'),
        (datetime.date(2026, 1, 2), '"2026-01-02"'),
        (datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.UTC), '"2026-01-02T03:04:00+00:00"'),
        (datetime.timedelta(days=1), '"1 day, 0:00:00"'),
        (decimal.Decimal("1.10"), '"1.10"'),
        (2 + 1j, '{"$complex":"(2+1j)"}'),
        ({1: "a", "1": "b"}, '{"$dict":[[1,"a"],["1","b"]]}'),
        ({("a", 1): 2}, '{"$dict":[[["a",1],2]]}'),
        ({None: 1, True: 2}, '{"$dict":[[null,1],[true,2]]}'),
        ({"$set": [1]}, '{"$dict":[["$set",[1]]]}'),
        (values.Opaque("shop.Cart", "<Cart>"), '{"$object":"shop.Cart","repr":"<Cart>"}'),
        ([1.0, float("nan"), -math.inf], "[1.0,NaN,-Infinity]"),
        (10**30, "1" + "0" * 30),
        ("a\ud800b", '"a\\ud800b"'),
        ("é€😀", '"é€😀"'),
        ("1", '"1"'),
    ],
)
def test_what_json_has_no_form_for_is_named(value, text):
    assert to_text(value, toon=False) == text
    to_text(value).encode()


def test_a_number_beyond_what_python_writes_out_is_in_base_16():
    too_large = 1 << LONGEST_INT_BITS
    assert json.loads(to_text(too_large, toon=False)) == {"$int": hex(too_large)}
    assert to_text(too_large - 1) == str(too_large - 1)


def test_half_a_pair_goes_as_json_which_can_escape_it():
    rows = [{**row, "name": "\udfff"} for row in TABLE]
    assert to_text(rows) == to_text(rows, toon=False)
    assert json.loads(to_text(rows)) == rows


def test_what_is_no_number_is_spelled_in_a_table_unless_a_text_says_the_same():
    pytest.importorskip("toons")
    rows = [{**row, "price": float("nan")} for row in TABLE]
    assert "  3,n3,NaN\n" in to_text(rows)
    rows[3]["name"] = "NaN"
    assert '"name":"NaN","price":NaN}' in to_text(rows)


@pytest.mark.parametrize("kind", [list, dict])
def test_what_is_too_deep_is_cut_and_that_is_said(kind):
    value = inner = kind()
    for _ in range(5000):
        following = kind()
        inner.append(following) if kind is list else inner.update(a=following)
        inner = following
    told = json.loads(to_text(value, toon=False))
    assert told["$cut"] == "the value is nested deeper than 100"
    assert told["type"] == kind.__name__


def test_what_holds_itself_is_cut():
    value = []
    value += [value, value]
    assert "nested deeper than 100" in to_text(value)


def test_what_is_too_large_is_cut_and_that_is_said():
    told = json.loads(to_text([0] * values.MAX_ITEMS, toon=False))
    assert told == {
        "$cut": "the value has more than 500,000 items",
        "type": "list",
        "repr": "[0, 0, 0, 0, 0, 0, ...]",
    }


def test_a_repr_that_fails_is_a_text_too():
    class Broken:
        def __repr__(self):
            raise OSError

    deep = [Broken()]
    for _ in range(values.MAX_DEPTH):
        deep = [deep]
    assert "Broken" in to_text(Broken())
    assert "nested deeper" in to_text(deep)


def test_arrays_are_lists():
    numpy = pytest.importorskip("numpy")
    assert to_text(numpy.arange(6).reshape(2, 3)) == "[[0,1,2],[3,4,5]]"


def a_value(dice: random.Random, depth: int = 0):
    kind = dice.randrange(8 if depth < 4 else 5)
    if kind < 3:
        text = "".join(dice.choices("ab,:|-[]{}\"'\\ \n\t#é€😀\u2028\x001.0", k=dice.randrange(6)))
        return dice.choice([text, "true", "null", "-1", "1e5", ""])
    if kind < 5:
        return dice.choice([None, True, dice.randrange(-9, 10**6), dice.random(), 1e-7, 2**70])
    if kind == 5:
        keys = [str(a_value(dice, 9)) for _ in range(3)]
        return [{key: a_value(dice, 9) for key in keys} for _ in range(dice.randrange(9))]
    size = dice.randrange(4)
    if kind == 6:
        return [a_value(dice, depth + 1) for _ in range(size)]
    return {str(a_value(dice, 9)): a_value(dice, depth + 1) for _ in range(size)}


def test_random_values_come_back_from_whichever_form_was_taken():
    toons = pytest.importorskip("toons")
    dice, seen = random.Random(6), set()
    for _ in range(500):
        value = a_value(dice)
        text, as_json = to_text(value), to_text(value, toon=False)
        assert len(text) <= len(as_json)
        assert json.loads(as_json) == value
        is_json = text == as_json
        seen.add(is_json)
        assert is_json or toons.loads(text) == value
    assert seen == {True, False}
