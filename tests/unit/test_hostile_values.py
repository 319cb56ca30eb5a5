"""Encoded arrays and frames that no honest guest sends: each is an error, none harms the host."""

from __future__ import annotations

import base64
import builtins
import json
import zoneinfo

import numpy as np
import pandas as pd
import pytest

from atoll.guest.shared import values
from atoll.guest.shared.arrays import LibraryMissingError


def array(dtype="<i8", shape=(1,), data=b"\0" * 8):
    return {
        "$": "array",
        "dtype": dtype,
        "shape": list(shape),
        "v": base64.b64encode(data).decode(),
    }


def column(**fields):
    return {"dtype": "numpy", "v": array(), **fields}


def frame(**fields):
    index = {"names": [None], "range": [0, 1, 1]}
    return {"$": "frame", "index": index, "labels": index, "v": [column()], **fields}


@pytest.mark.parametrize(
    "wire",
    [
        array("|O"), array("O"), array("|V8"), array([("a", "<i4")]), array("<f16", data=b"\0" * 16),
        array("<i8,<i8"), array("i8"), array("<M8[ns]x"), array("<M8[999999999999999999ns]"),
        array("<U0"), array("<U99999999999999999999"), array("<U-1"), array(None), array("<i3"),
        array(shape=[2]), array(shape=[-1]), array(shape=[True]), array(shape=[1.0]), array(shape="1"),
        array(shape=[2**62, 4]), array(shape=[0, 2**62], data=b""), array(shape=[1] * 100),
        array("|b1", data=b"\x02"), array("<U1", data=b"\xff\xff\xff\x7f"),
        {"$": "array"}, {"$": "array", "dtype": "<i8", "shape": [1], "v": 5},
        {**array(shape=[1]), "$": "scalar", "plain": 5},
        {**array(shape=[]), "$": "scalar"} | {"v": ""},
    ],
    ids=str,
)  # fmt: skip
def test_an_array_that_lies_is_refused(wire):
    with pytest.raises(ValueError):
        values.decode(json.loads(json.dumps(wire)))


@pytest.mark.parametrize(
    "wire",
    [
        frame(index={"names": [None], "range": [0, 2, 1]}),
        frame(index={"names": [None], "range": [0, 2**60, 1]}, v=[]),
        frame(index={"names": [None], "range": [0, 1, 0]}),
        frame(index={"names": [], "range": [0, 1, 1]}),
        frame(labels={"names": [None], "range": [0, 3, 1]}),
        frame(index=None), frame(v=5), frame(v=[5]), frame(v=[column(dtype="category")]),
        frame(v=[column(dtype="interval")]), frame(v=[column(dtype=["object"])]),
        frame(v=[{"dtype": "Int64", "v": ["x"]}]), frame(v=[{"dtype": "object", "v": "text"}]),
        frame(v=[{"dtype": "zoned", "zone": "dateutil//etc/passwd", "v": array("<M8[ns]")}]),
        frame(v=[{"dtype": "zoned", "zone": "../../etc/passwd", "v": array("<M8[ns]")}]),
        frame(v=[{"dtype": "zoned", "zone": 5, "v": array("<M8[ns]")}]),
        frame(v=[{"dtype": "category", "codes": array(), "labels": {"dtype": "object", "v": []}, "ordered": 1}]),
        {"$": "series", "index": {"names": [None], "range": [0, 1, 1]}, "name": [], "v": column()},
        {"$": "series"}, {"$": "index", "v": {"names": [None], "levels": []}},
        {"$": "timestamp", "v": "x" * 1000}, {"$": "timestamp", "v": "no time"}, {"$": "timestamp", "v": 5},
        {"$": "timestamp", "v": "2026-01-01", "zone": "dateutil//etc/passwd"},
        {"$": "pandas.timedelta", "v": "never"}, {"$": "fraction", "v": ["1", "0"]},
        {"$": "fraction", "v": ["f" * 100_000, "1"]}, {"$": "uuid", "v": "x"}, {"$": "uuid", "v": 5},
        {"$": "path", "v": 5, "pure": True}, {"$": "range", "v": ["1", "2", "0"]},
        {"$": "range", "v": ["1"] * 9}, {"$": "datetime", "v": "2026-01-01T00:00+00:00", "zone": 5},
        {"$": "datetime", "v": "2026-01-01T00:00+00:00", "zone": "z" * 1000},
    ],
    ids=lambda wire: str(wire)[:60],
)  # fmt: skip
def test_a_frame_or_a_time_that_lies_is_refused(wire):
    with pytest.raises(ValueError):
        values.decode(json.loads(json.dumps(wire)))


ENDLESS = {"$": "range", "v": ["0", "7" + "f" * 15, "1"]}
LONG_INDEX = {"$": "index", "v": {"names": [None], "range": [0, 2**30, 1]}}


@pytest.mark.parametrize("kind", ["tuple", "set", "frozenset"])
def test_a_range_is_not_unrolled_into_a_container(kind):
    with pytest.raises(ValueError, match="a container without a list"):
        values.decode({"$": kind, "v": ENDLESS})


@pytest.mark.parametrize("wire", [array(), frame(), LONG_INDEX, [LONG_INDEX]])
def test_results_and_arguments_hold_neither_arrays_nor_frames(wire):
    with pytest.raises(ValueError, match="too many arrays or columns"):
        values.decode_plain(wire)


def test_no_list_is_made_of_more_items_than_can_cross():
    with pytest.raises(values.UncrossableError, match="more than 10 items"):
        values.encode(values.decode(LONG_INDEX), max_items=10)


def test_columns_that_take_too_long_are_refused():
    decoder = values._Decoder(10)
    with pytest.raises(ValueError, match="too many arrays or columns"):
        decoder.decode([frame()] * 4)
    with pytest.raises(ValueError, match="too many arrays or columns"):
        decoder.decode(array())


def test_labels_that_share_one_hash_are_refused():
    labels = [values.encode(n * (2**61 - 1)) for n in range(1, 200)]
    index = {"names": [None], "levels": [{"dtype": "object", "v": labels}]}
    with pytest.raises(ValueError, match="one hash"):
        values.decode({"$": "index", "v": index})


def test_a_value_that_spends_too_many_bytes_is_not_even_copied():
    with pytest.raises(values.UncrossableError, match="bytes"):
        values.encode(np.zeros(4 << 20), strict=True, typed=True)
    with pytest.raises(values.UncrossableError, match="bytes"):
        values.encode(pd.DataFrame({"a": np.zeros(4 << 20)}), strict=True, typed=True)


def test_without_typed_arrays_are_lists_and_frames_are_dicts():
    value = [np.arange(2), np.float64(1.5), np.int8(3), pd.DataFrame({"a": [1]}), pd.Series([2])]
    assert values.decode(values.encode(value)) == [[0, 1], 1.5, 3, {"a": [1]}, [2]]


@pytest.fixture
def bare(monkeypatch):
    """A Python that has neither numpy nor pandas."""
    real = builtins.__import__

    def refuse(name, *rest):
        if name.partition(".")[0] in ("numpy", "pandas"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)


NEEDY = [
    (values.encode(value, typed=True), words)
    for value, words in (
        (np.arange(3), r"a numpy.ndarray needs numpy.*value.tolist\(\)"),
        (pd.DataFrame({"a": [1]}), r"a pandas.DataFrame needs pandas.*value.to_dict\(\)"),
        (pd.Timedelta(1, "ns"), "needs pandas"),
        (pd.Timestamp("2026-01-02 03:04:05.123456789"), "needs pandas"),
        (np.datetime64("2026"), "needs numpy"),
    )
]
SIMPLE = [np.int64(3), np.float32("nan"), np.bool_(True), pd.NaT, pd.Timestamp("2026-01-02")]
SIMPLE_WIRE = json.loads(json.dumps(values.encode(SIMPLE, typed=True)))


def test_a_side_without_the_library_says_what_to_do(bare):
    for wire, words in NEEDY:
        with pytest.raises(LibraryMissingError, match=words):
            values.decode(wire)


def test_a_side_without_the_library_takes_what_it_can_hold(bare):
    found = values.decode(SIMPLE_WIRE)
    assert str(found) == "[3, nan, True, None, datetime.datetime(2026, 1, 2, 0, 0)]"


def test_unknown_time_zones_do_not_hide_known_ones():
    """Whatever one guest names, the zones of the next one keep their names."""
    for number in range(200):
        values.decode({"$": "datetime", "v": "2026-01-01T00:00+00:00", "zone": f"Nowhere/{number}"})
    found = values.decode({"$": "datetime", "v": "2026-01-01T00:00+00:00", "zone": "Asia/Tokyo"})
    assert found.tzinfo == zoneinfo.ZoneInfo("Asia/Tokyo")
