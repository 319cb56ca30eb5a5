"""Texts become units: functions, classes and sections where there are any, lines where not."""

from __future__ import annotations

import importlib.util

import pytest

from atoll.agent.retrieval.sections import LONGEST_CODE, LONGEST_SECTION
from atoll.agent.retrieval.units import chunk

pytestmark = pytest.mark.spec("R4.4")
MOST = 5_000
needs_grammars = pytest.mark.skipif(
    importlib.util.find_spec("semble_grammars") is None,
    reason="no grammars are installed: pip install 'atoll[retrieval]'",
)
PYTHON = '''"""About shapes."""
import math

class Circle(Shape):
    """Round."""

    sides = 0

    @property
    def area(self) -> float:
        """How much it covers."""
        return math.pi * self.r ** 2

async def draw(shape, *, at=(0, 0),
               color=None):
    # é
    return shape

if True:
    def hidden(): return 1
'''


def by_name(path, text):
    return {unit.name: unit for unit in chunk(path, text, MOST)}


def test_python_becomes_functions_classes_and_methods():
    units = by_name("shapes.py", PYTHON)
    kinds = {name: unit.kind for name, unit in units.items()}
    assert kinds == {
        "Circle": "class",
        "Circle.area": "method",
        "draw": "function",
        "hidden": "function",
        "shapes.py": "module",
    }
    area = units["Circle.area"]
    assert (area.signature, area.doc) == ("def area(self) -> float", "How much it covers.")
    assert (area.start_line, area.end_line) == (9, 12)
    assert units["draw"].signature == "async def draw(shape, *, at=(0, 0), color=None)"


def test_a_class_has_its_methods_by_signature_only():
    circle = by_name("shapes.py", PYTHON)["Circle"]
    assert "sides = 0" in circle.body
    assert "def area(self) -> float" in circle.body
    assert "math.pi" not in circle.body
    assert circle.doc == "Round."


def test_what_is_outside_of_definitions_is_the_module():
    module = by_name("shapes.py", PYTHON)["shapes.py"]
    assert module.doc == "About shapes."
    assert "import math" in module.body
    assert "return shape" not in module.body


@pytest.mark.parametrize("name", ["Circle.area", "draw", "hidden"])
def test_offsets_are_characters_of_the_text(name):
    unit = by_name("shapes.py", PYTHON)[name]
    assert PYTHON[unit.start : unit.end] == unit.body


OTHERS = {
    "a.go": (
        "package a\n\n// Adds é numbers.\nfunc (s *T) Add(x int) error {\n\treturn nil\n}\n",
        ("function", "Add", "func (s *T) Add(x int) error", "// Adds é numbers."),
    ),
    "a.rs": (
        "/// Adds.\npub fn add(x: i32) -> i32 { x }\nimpl T for A {\n  fn get(&self) {}\n}\n",
        ("method", "A.get", "fn get(&self)", ""),
    ),
    "a.ts": (
        "// Draws.\nexport const draw = (x: number) => { return x }\nclass A { f() {} }\n",
        ("function", "draw", "export const draw = (x: number) =>", "// Draws."),
    ),
    "a.java": (
        "public class A {\n  /** Runs. */\n  public int run(int x) { return 1; }\n}\n",
        ("method", "A.run", "public int run(int x)", "/** Runs. */"),
    ),
    "a.c": (
        "/* Opens. */\nstatic int *open_it(int a) { return 0; }\n",
        ("function", "open_it", "static int *open_it(int a)", "/* Opens. */"),
    ),
    "a.rb": ("module M\n class A\n  def go(x)\n  1\n end\n end\nend\n",
        ("method", "M.A.go", "def go(x)", ""),
    ),
}  # fmt: skip


@needs_grammars
@pytest.mark.parametrize("path", OTHERS)
def test_other_languages_become_functions_and_methods(path):
    text, expected = OTHERS[path]
    unit = by_name(path, text)[expected[1]]
    assert (unit.kind, unit.name, unit.signature, unit.doc) == expected
    assert text[unit.start : unit.end] == unit.body


@needs_grammars
def test_a_program_on_one_line_does_not_grow_with_its_functions():
    text = "function f(){return 1}" * 1_000
    units = chunk("a.js", text, MOST)
    assert len(units) == 1_000
    assert sum(len(unit.body) for unit in units) == len(text)


BROKEN = {
    "syntax.py": "def f(:\n  pass\n" * 10,
    "zero.py": "x = '\0'\n",
    "nested.py": "(" * 50_000,
    "unary.py": "x = " + "-" * 50_000 + "1",
    "chain.py": "x = a" + ".b" * 50_000,
    "return.py": "def f():\r  pass\n",
    "nested.js": "(" * 20_000,
    "blocks.c": "{" * 20_000,
    "plain.json": '{"a": 1}',
}


@pytest.mark.parametrize("path", BROKEN)
def test_what_does_not_parse_becomes_lines(path):
    units = chunk(path, BROKEN[path], MOST)
    assert {unit.kind for unit in units} == {"lines"}
    assert "".join(unit.body for unit in units) == BROKEN[path]


def test_a_long_function_becomes_parts_of_its_name():
    text = "def long():\n" + "    call_something(1, 2, 3)\n" * 1_000
    units = [unit for unit in chunk("a.py", text, MOST) if unit.kind == "function"]
    assert len(units) > 3
    assert {unit.name for unit in units} == {"long"}
    assert max(len(unit.body) for unit in units) <= LONGEST_CODE
    assert "".join(unit.body for unit in units) == text
    assert [unit.start_line for unit in units[1:]] == [unit.end_line + 1 for unit in units[:-1]]


def test_a_long_docstring_is_not_repeated_with_every_part():
    text = f'def long():\n    """{"word " * 50_000}"""\n' + "    call(1)\n" * 10_000
    units = chunk("a.py", text, MOST)
    assert sum(len(unit.doc) + len(unit.body) for unit in units) < 3 * len(text)


def test_no_more_units_than_allowed():
    text = "def f(): ...\n" * 100
    assert len(chunk("a.py", text, 7)) == 7
    assert len(chunk("a.md", "# A\ntext\n" * 100, 7)) == 7


def test_markdown_becomes_sections_named_by_their_headers():
    text = "intro\n# Guide\nhello\n```\n# no header\n```\n## Install\nrun it\nOther\n=====\nend\n"
    units = chunk("a.md", text, MOST)
    assert [unit.name for unit in units] == ["a.md", "Guide", "Guide > Install", "Other"]
    assert all(text[unit.start : unit.end] == unit.body for unit in units)
    assert "# no header" in units[1].body


def test_restructured_text_becomes_sections_by_underlines():
    text = "Guide\n=====\nhello\n\nInstall\n-------\nrun it\n\nUse\n---\nx\n"
    names = [unit.name for unit in chunk("a.rst", text, MOST)]
    assert names == ["Guide", "Guide > Install", "Guide > Use"]


def test_html_becomes_sections_without_tags():
    text = "<body>\n<h1 class='x'>Guide</h1>\n<p>hello <b>you</b></p>\n<h2>Install</h2>\nrun\n"
    units = chunk("a.html", text, MOST)
    assert [unit.name for unit in units][-2:] == ["Guide", "Guide > Install"]
    assert "<b>" not in units[-2].body
    assert "hello" in units[-2].body


def test_a_text_without_headers_becomes_bounded_sections_that_miss_nothing():
    text = "some words of a paragraph\n\n" * 500
    units = chunk("notes.txt", text, MOST)
    assert {unit.kind for unit in units} == {"section"}
    assert max(len(unit.body) for unit in units) <= LONGEST_SECTION
    assert "".join(unit.body for unit in units) == text


@pytest.mark.parametrize("piece", ["<h1 ", "<", "#", "# ", "= ", "`", "=\n", "a\n=\n", "\n", "* "])
def test_hostile_documents_take_time_in_proportion_to_their_size(piece):
    """What backtracks would take hours for these."""
    for path in ("a.md", "a.rst", "a.html", "a.adoc", "a.org", "a.txt"):
        chunk(path, piece * (30_000 // len(piece)), MOST)
