"""Values that cross between guest and host."""

from __future__ import annotations

import json

import pytest

from atoll.guest.shared import values


@pytest.mark.parametrize(
    "value", [{"$": "tuple", "v": [1]}, {"$": None}, {"a": {"$": 1}}, {1: 2}, [{}, ()]]
)
def test_values_that_look_like_tags_survive(value):
    assert values.decode(json.loads(json.dumps(values.encode(value)))) == value


@pytest.mark.parametrize(
    "wire",
    [{"$": "nothing"}, {"$": "bytes"}, {"$": "bytes", "v": 5}, {"$": "set", "v": [[1]]}, {"$": "int", "v": "xyz"},
     {"$": "datetime", "v": "no date"}, {"$": "dict", "v": [1]}, {"$": [1]}, {"$": "timedelta", "v": [10**30]}],
)  # fmt: skip
def test_what_encode_never_makes_is_a_value_error(wire):
    with pytest.raises(ValueError):
        values.decode(wire)


def test_strict_refuses_what_has_no_plain_form():
    with pytest.raises(ValueError, match="a value of type function is not plain data"):
        values.encode([lambda: 0], strict=True)


def test_an_unprintable_object_is_named():
    class Bad:
        def __repr__(self):
            raise RuntimeError("no")

    assert values.decode(values.encode(Bad())).repr == "<unprintable Bad: RuntimeError>"


def test_arrays_become_lists():
    class FakeArray:
        __module__ = "numpy"

        def tolist(self):
            return [1, 2]

    assert values.encode(FakeArray()) == [1, 2]
