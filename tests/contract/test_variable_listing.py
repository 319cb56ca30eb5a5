"""The names that a guest has: variables() and has_variable(), also of a hostile guest."""

from __future__ import annotations

import pytest

import atoll
from atoll import Capability
from atoll.guest.core.variables import MAX_TEXT, MAX_VARIABLES

pytestmark = pytest.mark.spec("R0.12")


def by_name(found):
    return {one.name: one for one in found}


def test_a_typo_can_be_told_from_a_none(box):
    box.execute("result = None")
    assert box.get_variable("result") is None
    assert box.get_variable("reslut") is None
    assert box.has_variable("result") is True
    assert box.has_variable("reslut") is False


@pytest.mark.parametrize("name", ["a.b", "rows[0]", "len(rows)", "", "two words", "None", "class"])
def test_what_cannot_be_a_name_is_an_error_that_says_how_to_get_the_value(box, name):
    for ask in (box.get_variable, box.has_variable):
        with pytest.raises(
            atoll.ConfigError, match=r"use a Python name, and execute\(\) for anything else$"
        ):
            ask(name)


def test_variables_have_names_types_and_sizes(box):
    box.execute(
        "n = 1\ntext = 'abc'\nrows = [1, 2]\ntable = {'a': 1}\nempty = None\n"
        "def double(x): return 2 * x\nclass Thing: pass\nthing = Thing()\n_hidden = 1"
    )
    found = box.variables()
    assert isinstance(found, atoll.Variables)
    assert found.names == ["n", "text", "rows", "table", "empty", "double", "Thing", "thing"]
    assert not found.truncated
    known = by_name(found)
    assert [known[name].type for name in ("n", "text", "rows", "empty", "thing")] == [
        "int", "str", "list", "NoneType", "Thing",
    ]  # fmt: skip
    assert (known["text"].shape, known["rows"].shape, known["n"].shape) == ((3,), (2,), None)
    assert known["text"].size > 3
    assert known["thing"].size is None
    assert "_hidden" in box.variables(hidden=True).names
    assert str(found).splitlines()[0].split() == ["name", "type", "shape", "bytes"]
    assert str(found).splitlines()[2].split()[:3] == ["text", "str", "3"]


def test_the_context_is_a_variable_if_there_is_one(open_box):
    assert open_box(context="text").variables().names == ["context"]
    assert open_box().variables().names == []


def test_arrays_and_frames_have_a_shape(box):
    if not box.execute("import numpy, pandas").success:
        pytest.skip("no pandas there")
    box.execute("a = numpy.zeros((2, 3))\nf = pandas.DataFrame({'x': [1, 2], 'y': [3, 4]})")
    known = by_name(box.variables())
    assert (known["a"].type, known["a"].shape, known["a"].size) == ("numpy.ndarray", (2, 3), 48)
    assert known["f"].shape == (2, 2)
    assert known["f"].size > 32


@pytest.mark.needs(Capability.IMPORTS)
def test_a_listing_ends_somewhere(box):
    box.execute("for n in range(3000): globals()['v%d' % n] = n")
    found = box.variables()
    assert len(found) == MAX_VARIABLES
    assert found.truncated


def test_no_method_of_a_guests_class_is_called(box):
    box.execute(
        "called = []\n"
        "class Evil(list):\n"
        "    def __len__(self): called.append('len'); return -1\n"
        "    def __sizeof__(self): called.append('sizeof'); return 10 ** 100\n"
        "    def __repr__(self): called.append('repr'); return ''\n"
        "class Other:\n"
        "    def __len__(self): called.append('len')\n"
        "    def __sizeof__(self): called.append('sizeof')\n"
        "evil, other = Evil([1, 2]), Other()"
    )
    known = by_name(box.variables())
    assert known["evil"].shape == (2,)
    assert known["evil"].size < 10_000
    assert known["other"].size is None
    assert box.get_variable("called") == []


@pytest.mark.needs(Capability.IMPORTS)
def test_names_and_types_are_cut_and_wrong_ones_left_out(box):
    box.execute(
        "globals()['n' * 100_000] = 1\nglobals()[5] = 1\n"
        "long = type('T' * 100_000, (), {})()\n"
        "class Meta(type):\n"
        "    __module__ = property(lambda self: 1 / 0)\n"
        "class Odd(metaclass=Meta): pass\n"
        "odd = Odd()\n"
        "class Name(str):\n"
        "    def __eq__(self, other): raise KeyError\n"
        "    __hash__ = str.__hash__\n"
        "globals()[Name('sly')] = 1"
    )
    found = box.variables()
    assert {"n" * MAX_TEXT, "long", "odd"} <= set(found.names)
    assert "sly" not in found.names
    assert len(by_name(found)["long"].type) == MAX_TEXT
    assert box.execute("1").value == 1


@pytest.mark.needs(Capability.IMPORTS)
def test_a_name_that_compares_for_ever_is_interrupted(open_box):
    box = open_box(timeout_ms=700)
    box.execute(
        "class Name(str):\n"
        "    def __eq__(self, other):\n"
        "        while True: pass\n"
        "    __hash__ = str.__hash__\n"
        "globals()[Name('sly')] = 1"
    )
    with pytest.raises(atoll.VariableError):
        box.has_variable("sly")
    assert box.execute("1").value == 1
