"""The guards on the host: what they refuse, how they say it, and that nothing can hurt them."""

from __future__ import annotations

import ast
import builtins
import unicodedata

import pytest
from costs import least_cpu_seconds

import atoll
from atoll.sandbox import guard
from atoll.sandbox.guard import words
from atoll.sandbox.guard.visitor import MAX_CHARACTERS


def rules(code: str, name: str = "ast") -> list[str]:
    return [one.rule for one in guard.check(code, name)]


@pytest.mark.spec("R4.1")
@pytest.mark.parametrize("module", sorted(words.SEED_MODULES))
@pytest.mark.parametrize("line", ["import {}", "import {}.x as y", "from {} import x"])
def test_the_modules_that_lead_to_the_system_are_refused(module, line):
    assert "module" in rules(line.format(module))


@pytest.mark.spec("R4.1")
@pytest.mark.parametrize("name", sorted(words.SEED_CALLS))
@pytest.mark.parametrize("use", ["{}('x')", "f = {}", "@{}\nclass X: pass", "def f(x: {}): pass"])
def test_the_calls_that_lead_out_are_refused_however_they_are_used(name, use):
    assert rules(use.format(name)) == ["call"]


@pytest.mark.spec("R4.1")
@pytest.mark.parametrize(
    "name",
    ["__class__", "__bases__", "__subclasses__", "__mro__", "__dict__", "__globals__",
     "__locals__", "__code__", "__builtins__", "__closure__", "__base__", "__getattribute__"],
)  # fmt: skip
def test_the_interpreters_attributes_are_refused_with_a_dot_and_with_brackets(name):
    assert rules(f"x.{name}") == ["attribute"]
    assert rules(f"x['{name}']") == ["subscript"]


@pytest.mark.spec("R4.1")
@pytest.mark.parametrize(
    ("code", "rule"),
    [
        ("g.gi_frame", "frame"),
        ("c.cr_frame", "frame"),
        ("a.ag_frame", "frame"),
        ("e.__traceback__.tb_frame.f_back", "frame"),
        ("'{0.__class__}'.format(x)", "format-string"),
        ("'{x[0].gi_frame}'.format(x=x)", "format-string"),
        ("s.format_map(d)", "gadget"),
        ("from operator import attrgetter", "gadget"),
        ("random._os", "gadget"),
        ("try: x\nexcept AttributeError as e: e.obj", "exception-object"),
        ("try: x\nexcept* ValueError: pass", "syntax"),
        ("match x:\n  case object(__class__=c): pass", "pattern"),
        ("match x:\n  case object(gi_frame=c): pass", "pattern"),
        ("class A: __match_args__ = tuple(n)", "match-args"),
        ("().__\uff43lass__", "attribute"),
        ("import \uff4fs", "module"),
        ("f(__globals__=1)", "identifier"),
        ("__builtins__ = {}", "identifier"),
        ("x.__class__ = Y", "attribute"),
        ("from math import *", "star-import"),
        ("from . import x", "module"),
        ("import numpy.f2py", "module"),
    ],
)
def test_what_lists_of_names_miss_is_refused_too(code, rule):
    assert rule in rules(code)


@pytest.mark.spec("R4.1")
def test_a_refusal_names_line_rule_and_what_to_do():
    found = guard.check("x = 1\n\nimport subprocess\ny = eval('1')")
    assert [(one.line, one.column, one.rule) for one in found] == [(3, 0, "module"), (4, 4, "call")]
    text = guard.describe(found)
    assert text.startswith("GuardError: the code was refused and did not run: line 3, module: ")
    assert 'create_sandbox(backend="native")' in text
    assert "line 4, call: eval is not allowed here: write the expression itself" in text


def test_many_violations_are_cut():
    text = guard.describe(guard.check("import os\n" * 50))
    assert text.count("line ") == 10
    assert text.endswith("and 40 more")


@pytest.mark.spec("R4.20")
@pytest.mark.parametrize("name", ["ast", "restricted", "restrictedpython"])
@pytest.mark.parametrize(
    "code",
    ["-" * 50_000 + "1", "x" + ".y" * 50_000, "+".join(["1"] * 50_000), "x" + "[0]" * 5_000],
    ids=["minus", "dots", "sum", "brackets"],
)
def test_deep_code_is_a_violation_and_no_error(name, code):
    assert rules(code, name) in (["nesting"], [])  # refused, or walked without recursion


@pytest.mark.spec("R4.20")
@pytest.mark.parametrize("name", ["ast", "restricted", "restrictedpython"])
def test_huge_code_is_refused_before_it_is_parsed(name):
    code = "x = 1\n" * (MAX_CHARACTERS // 6 + 1)
    assert rules(code, name) == ["size"]
    read_a_part = least_cpu_seconds(lambda: ast.parse(code[:30_000]))
    assert least_cpu_seconds(lambda: rules(code, name)) < read_a_part


@pytest.mark.parametrize("code", ["x = = 1", "x = '\0'", "(" * 5000, "'\ud800'"])
@pytest.mark.parametrize("name", ["ast", "restricted", "restrictedpython"])
def test_code_that_does_not_parse_is_left_to_its_syntax_error(name, code):
    assert guard.check(code, name) in ((), guard.check("-" * 50_000 + "1", name))


def test_checking_takes_time_in_proportion_to_the_code():
    def cost(lines: int) -> float:
        code = "x = [i.name for i in range(10) if i]\n" * lines
        return least_cpu_seconds(lambda: guard.check(code))

    assert cost(2000) < 60 * max(cost(200), 0.001)


@pytest.mark.spec("R4.2")
@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("x = y._private", '"_private" is an invalid attribute name'),
        ("exec('1')", "Exec calls are not allowed"),
        ("\n\nx.__class__", '"__class__" is an invalid attribute name'),
    ],
)
def test_the_policy_of_restrictedpython_is_asked(code, text):
    (found,) = guard.check(code, "restrictedpython")
    assert found.rule == "restrictedpython"
    assert text in found.message
    assert found.line == code.count("\n") + 1


@pytest.mark.spec("R4.2")
def test_without_restrictedpython_it_says_what_to_type(monkeypatch):
    real = builtins.__import__

    def missing(name, *rest):
        if name == "RestrictedPython":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(atoll.ConfigError, match=r"pip install .*RestrictedPython"):
        guard.check("1", "restrictedpython")
    with pytest.raises(atoll.ConfigError, match=r"pip install .*RestrictedPython"):
        atoll.create_sandbox(backend="restricted", guard="restrictedpython")


def test_a_guard_that_does_not_exist_is_refused():
    with pytest.raises(atoll.ConfigError, match="no guard 'strict': there are ast"):
        guard.check("1", "strict")
    with pytest.raises(atoll.ConfigError, match="no guard 'strict'"):
        atoll.create_sandbox(guard="strict")


CONTROLS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


@pytest.mark.parametrize("name", ["ast", "restricted"])
@pytest.mark.parametrize("code", ["1\r\n# é{}", "'''\n  {}'''", "x = 1\r%pip {}", "(\n# {}"])
def test_bidirectional_control_characters_are_refused_by_line_column_and_name(name, code):
    for control in CONTROLS:
        [found] = guard.check(code.format(control), name)
        assert (found.line, found.column) == (2, code.split("\n")[-1].split("\r")[-1].index("{"))
        assert f"column {found.column + 1} has {unicodedata.name(control)}" in found.message
    assert guard.check("# é אב\u200d", name) == ()
