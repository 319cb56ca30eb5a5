"""Values that are set in a guest and read back: they arrive as what they were."""

from __future__ import annotations

import datetime as dt
import uuid
import zoneinfo
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath

import numpy as np
import pandas as pd
import pytest

import atoll
from atoll import Capability

pytestmark = pytest.mark.spec("R0.12")

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
PLAIN = [
    None, True, -7, 10**100, 1.5, float("inf"), 2 + 3j, "text \ud800 \x00 é", b"\x00\xff",
    (1, (2, 3)), {1, 2}, frozenset("a"), {"$": 1, "b": [()]}, {(1, 2): "pair", None: 0}, [], {},
    dt.datetime(2026, 1, 2, 3, 4, 5, 6), dt.datetime(2026, 1, 2, tzinfo=dt.UTC),  # noqa: DTZ001
    dt.date(2026, 1, 2), dt.time(1, 2, 3), dt.timedelta(1, 2, 3), Decimal("1.10"), Decimal("NaN"),
    Fraction(1, 3), uuid.UUID(int=5), range(1, 10, 3),
]  # fmt: skip
FRAME = pd.DataFrame(
    {
        "number": [1, 2, 3],
        "share": [0.5, float("nan"), 1.0],
        "text": ["a", None, "c"],
        "mixed": [1, "x", None],
        "when": pd.date_range("2026-01-01", periods=3),
        "there": pd.date_range("2026-01-01", periods=3, tz="Europe/Berlin"),
        "kind": pd.Categorical(["x", "y", "x"], categories=["x", "y", "z"]),
        "maybe": pd.array([1, None, 3], dtype="Int64"),
        "day": [dt.date(2026, 1, 1)] * 3,
    }
)


@pytest.fixture
def wide(box):
    """A sandbox whose Python has numpy and pandas."""
    if not box.execute("import numpy, pandas").success:
        pytest.skip(f"the Python of the backend {box.backend} has no pandas")
    return box


@pytest.fixture
def numeric(box):
    """A sandbox whose Python has numpy."""
    if not box.execute("import numpy").success:
        pytest.skip(f"the Python of the backend {box.backend} has no numpy")
    return box


def there_and_back(box, value):
    box.set_variable("v", value)
    return box.get_variable("v")


def test_plain_values_come_back_as_they_were(box):
    box.set_variable("many", PLAIN)
    found = box.get_variable("many")
    assert [type(one) for one in found] == [type(one) for one in PLAIN]
    assert str(found) == str(PLAIN)


def test_a_time_zone_keeps_its_name(box):
    value = dt.datetime(2026, 7, 25, 2, 30, tzinfo=BERLIN)
    found = there_and_back(box, value)
    assert found == value
    if found.tzinfo != BERLIN:  # a guest without a time zone database knows the offset alone
        assert found.utcoffset() == value.utcoffset()


@pytest.mark.needs(Capability.IMPORTS)
def test_paths_are_paths(box):
    assert there_and_back(box, [Path("/app/x"), PurePosixPath("y")]) == [
        Path("/app/x"),
        PurePosixPath("y"),
    ]
    assert box.execute("v[0].parent.name").value == "app"


def test_what_is_set_is_the_guests_own(box):
    box.set_variable("rows", [{"a": 1}, {"a": 2}])
    assert box.execute("rows.append({'a': 3})\nsum(row['a'] for row in rows)").value == 6
    assert len(box.get_variable("rows")) == 3


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3), np.array([], dtype="f4"), np.zeros((0, 3)), np.array(5.5),
        np.array(["a", "bcd"]), np.array([b"x"]), np.array([True, False]), np.arange(3, dtype="u1"),
        np.array(["2026", "2027"], dtype="M8[ns]"), np.array([1, 2], dtype="m8[s]"), np.array([1j]),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.arange(3, dtype=">i4"),
    ],
    ids=lambda array: f"{array.dtype}-{array.shape}",
)  # fmt: skip
def test_arrays_come_back_as_arrays(numeric, array):
    found = there_and_back(numeric, array)
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype.newbyteorder("<")
    assert numeric.execute("v.shape").value == array.shape
    found[...] = found  # it may be written to


@pytest.mark.parametrize(
    "value", [np.int64(3), np.float32(1.5), np.bool_(True), np.datetime64("2026-01-02")]
)
def test_scalars_come_back_as_scalars(numeric, value):
    found = there_and_back(numeric, {"here": value})["here"]
    assert found == value
    assert type(found) is type(value)


def test_frames_series_and_indexes_come_back(wide):
    pd.testing.assert_frame_equal(there_and_back(wide, FRAME), FRAME)
    grouped = FRAME.groupby(["number", "text"])[["share"]].sum()
    pd.testing.assert_frame_equal(there_and_back(wide, grouped), grouped)
    pd.testing.assert_series_equal(there_and_back(wide, FRAME["there"]), FRAME["there"])
    pd.testing.assert_index_equal(there_and_back(wide, FRAME.columns), FRAME.columns)
    assert wide.execute("type(v).__name__").value == "Index"


@pytest.mark.parametrize(
    "value",
    [pd.Timestamp("2026-01-02 03:04:05.123456789"), pd.Timestamp("2026-01-02", tz="Europe/Berlin"),
     pd.Timedelta(1, "ns"), pd.NaT, pd.NA],
    ids=str,
)  # fmt: skip
def test_moments_of_pandas_come_back(wide, value):
    found = there_and_back(wide, [value])[0]
    assert type(found) is type(value)
    assert str(found) == str(value)


def test_a_guests_timestamp_reaches_a_tool(wide, open_box):
    got = []
    box = open_box(tools={"take": got.append})
    box.execute("import pandas as pd\ntake(pd.Timestamp('2026-01-02 03:04'))")
    assert got == [pd.Timestamp("2026-01-02 03:04")]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), "a value of type object is not plain data"),
        ((one for one in []), r"take list\(it\)"),
        (np.array([object()]), "dtype object"),
        (np.zeros(2, dtype=[("a", "i4")]), "dtype"),
        ("x" * 30_000_000, "bytes"),
        (list(range(600_000)), "items"),
        (pd.period_range("2026", periods=2, freq="M"), r"period\[M\]"),
    ],
    ids=["object", "generator", "objects", "record", "long", "many", "periods"],
)
def test_what_cannot_be_set_is_refused_with_advice(box, value, reason):
    with pytest.raises(atoll.VariableError, match=reason) as caught:
        box.set_variable("v", value)
    assert "cannot be set" in str(caught.value)
    assert "files.upload()" in str(caught.value)
    assert not box.has_variable("v")


@pytest.mark.parametrize("name", ["", "a b", "1a", "for", "__builtins__", "a.b", "x" * 5000])
def test_what_is_not_a_name_is_not_set(box, name):
    with pytest.raises(atoll.ConfigError, match="name"):
        box.set_variable(name, 1)


def test_a_name_must_be_a_text(box):
    for ask in (box.get_variable, box.has_variable, lambda name: box.set_variable(name, 1)):
        with pytest.raises(atoll.ConfigError, match="must be a str, not int"):
            ask(5)


def test_a_backend_without_pandas_says_so(open_box, backend):
    if backend != "wasm":
        pytest.skip("this backend's Python has numpy")
    box = open_box()
    with pytest.raises(atoll.VariableError, match=r"a numpy.ndarray needs numpy.*value.tolist\(\)"):
        box.set_variable("v", np.arange(3))


def test_a_restricted_guest_is_not_handed_what_opens_files(open_box, backend):
    if backend != "restricted":
        pytest.skip("the others have files of their own")
    box = open_box(tools={"give": lambda: Path("/etc/passwd")})
    for value in (Path("/etc/passwd"), [Path("/etc/passwd")], FRAME, {"a": FRAME["text"]}):
        with pytest.raises(atoll.VariableError, match="takes no value of the kind"):
            box.set_variable("v", value)
    assert "takes no value of the kind" in box.execute("give()").error
    with pytest.raises(atoll.VariableError, match="underscore"):
        box.set_variable("_v", 1)
