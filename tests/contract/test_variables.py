"""Guest variables as plain host values."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal

import pytest

import atoll
from atoll import Capability


@pytest.mark.spec("R0.12")
@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("None", None),
        ("True", True),
        ("-7", -7),
        ("10 ** 100", 10**100),
        ("-(1 << 10_000)", -(1 << 10_000)),
        ("1.5", 1.5),
        ("float('inf')", math.inf),
        ("2 + 3j", 2 + 3j),
        ("'text \\ud800 \\x00 é'", "text \ud800 \x00 é"),
        ("b'\\x00\\xff'", b"\x00\xff"),
        ("(1, (2, 3))", (1, (2, 3))),
        ("{1, 2}", {1, 2}),
        ("frozenset('a')", frozenset("a")),
        ("{'$': 1, 'b': [()]}", {"$": 1, "b": [()]}),
        ("{(1, 2): 'pair', None: 0}", {(1, 2): "pair", None: 0}),
        ("collections.Counter('aab')", {"a": 2, "b": 1}),
        ("datetime.datetime(2026, 1, 2, 3, 4)", datetime.datetime(2026, 1, 2, 3, 4)),  # noqa: DTZ001
        ("datetime.timedelta(1, 2, 3)", datetime.timedelta(1, 2, 3)),
        ("decimal.Decimal('1.10')", Decimal("1.10")),
    ],
)
def test_values_keep_their_type(box, code, value):
    box.execute(f"import collections, datetime, decimal\nv = {code}")
    found = box.get_variable("v")
    assert found == value
    assert type(found) is type(value)


@pytest.mark.spec("R0.12")
def test_nan_is_nan(box):
    box.execute("v = float('nan')")
    assert math.isnan(box.get_variable("v"))


@pytest.mark.spec("R0.12")
def test_a_missing_variable_is_none_or_the_default(box):
    assert box.get_variable("nothing") is None
    assert box.get_variable("nothing", 5) == 5


@pytest.mark.spec("R0.12")
def test_an_object_that_cannot_be_sent_is_an_error_that_says_what_to_do(box):
    box.execute("class Thing:\n    def __repr__(self): return 'Thing!'\nv = [Thing()]\nf = len")
    with pytest.raises(
        atoll.VariableError, match="a value of type Thing is not plain data"
    ) as caught:
        box.get_variable("v")
    assert "files.download()" in str(caught.value)
    assert caught.value.name == "v"
    with pytest.raises(atoll.VariableError, match="builtin_function_or_method"):
        box.get_variable("f")


@pytest.mark.spec("R0.12")
def test_plain_gives_other_objects_as_type_and_repr(box):
    box.execute("class Thing:\n    def __repr__(self): return 'Thing!'\nv = [Thing()]\nf = len")
    assert box.get_variable("v", plain=True) == [atoll.Opaque("Thing", "Thing!")]
    assert box.get_variable("f", plain=True).type_name == "builtin_function_or_method"


@pytest.mark.spec("R0.12")
@pytest.mark.needs(Capability.IMPORTS)
def test_no_pickle_of_a_guest_is_ever_loaded(box, tmp_path):
    marker = tmp_path / "loaded"
    box.execute(
        f"class Evil:\n    def __reduce__(self): return (open, ({str(marker)!r}, 'w'))\nv = Evil()"
    )
    assert isinstance(box.get_variable("v", plain=True), atoll.Opaque)
    with pytest.raises(atoll.VariableError):
        box.get_variable("v")
    assert not marker.exists()


@pytest.mark.spec("R0.12")
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("v = []\nfor _ in range(500): v = [v]", "nested deeper"),
        ("v = []\nv.append(v)", "nested deeper"),
        ("v = 'x' * 30_000_000", "bytes"),
        ("v = list(range(3_000_000))", "items"),
    ],
    ids=["deep", "cyclic", "long", "many"],
)
def test_what_cannot_cross_is_a_clear_error(box, code, reason):
    box.execute(code)
    with pytest.raises(atoll.VariableError, match=reason):
        box.get_variable("v")
    assert box.execute("1").value == 1


@pytest.mark.spec("R0.12")
def test_a_value_that_never_ends_is_ended(open_box):
    box = open_box(timeout_ms=500)
    box.execute("class Endless:\n    def __repr__(self):\n        while True: pass\nv = Endless()")
    with pytest.raises(atoll.VariableError):
        box.get_variable("v")
    assert box.execute("1").value == 1


@pytest.mark.spec("R0.3")
def test_a_large_last_value_is_shown_by_its_repr(box):
    result = box.execute("list(range(100_000))")
    assert isinstance(result.value, atoll.Opaque)
    assert "get_variable('_')" in repr(result.value)
    assert box.get_variable("_") == list(range(100_000))
    assert result.value_repr.startswith("[0, 1, 2")
    assert len(result.value_repr) < 20_000
