"""Cells are compiled without a syntax tree where that gives the same code."""

from __future__ import annotations

import types

import pytest

from atoll.guest.cells import splitting

CELLS = (
    "", "\n", "# only a comment", "1", "1\n\n", "1; 2", "x = 1; x", "x = 1", "x = 'a;b'", "f(\n1\n)", "(1,\n2)",
    "'''a\nb'''", "x = '''\n1\n'''\nx", "x = '''\n1", "x = 1 + \\\n2", "x = 1 \\\n-2", "x = 1 \\\n\n-2",
    "x = 'a\\\n1'", "x = 5 #\\\n7", "a\\\n", "if x:\n  y\nz", "if x:\n  y\n  z", "if x: y", "@d\nf",
    "def f():\n  return 1\nf", "x\nelse", "await x", "y\nawait x", "yield x", "*a, b", "a, *b", "x := 1",
    "match (x)", "print('a')\r\nb", "a\rb\nc", "a\n\x0cb", "a\n  b", "  a", "a\n# end", "a # end",
    "a;\nb;", "from __future__ import annotations\nx", "[i\nfor i in x]", "'doc'\nx", "'doc'", "\x00",
    "a\n\x1c", "(", "a\n)", "x = [\n1\n][0]", "return", "\ufeffa", "a if b else\\\nc", "1 +",
    "try:\n a\nfinally: b\nc", "lambda: (yield)", "f'{x}'", "x == 1", "x=1", "x += 1", "x <= 1", "x != 1",
    "x = y = 2", "f(a=1)", "f(a,\nx = 1)", "y\nx = 1", "x =", "x = 1; y", "if = 1", "del x", "imported",
)  # fmt: skip


@pytest.mark.parametrize("code", CELLS)
def test_a_cell_that_is_cut_at_its_last_line_compiles_as_by_its_tree(code):
    assert compiled(splitting.compile_plain, code) == compiled(splitting.split, code)


@pytest.mark.parametrize("code", ["print('hi')", "x = 1\nif x:\n  y\n\nx + 1\n", "'''\n'''\nx"])
def test_no_tree_is_made_of_a_cell_that_ends_with_an_expression(code, monkeypatch):
    monkeypatch.setattr(splitting, "split", lambda *_: pytest.fail("a tree was made"))
    _, last = splitting.compile_plain(code, "<cell 1>")
    assert last is not None


@pytest.mark.parametrize("code", ["x = 1", "import os\n", "if x: y", "# nothing", ""])
def test_no_tree_is_made_of_a_single_line_that_is_another_statement(code, monkeypatch):
    monkeypatch.setattr(splitting, "split", lambda *_: pytest.fail("a tree was made"))
    _, last = splitting.compile_plain(code, "<cell 1>")
    assert last is None


@pytest.mark.parametrize("code", ["x = 1", "total += x", "import os", "y\ndel x"])
def test_a_line_that_cannot_be_an_expression_is_not_compiled_as_one(code, monkeypatch):
    modes = []

    def noted(*args, **options):
        modes.append(args[2])
        return compile(*args, **options)

    monkeypatch.setattr(splitting, "compile", noted, raising=False)
    splitting.compile_plain(code, "<cell 1>")
    assert "eval" not in modes


def compiled(function, code):
    """What a function makes of a cell: all of the code, with its lines, or the error."""
    try:
        return [part and contents(part) for part in function(code, "<cell 1>")]
    except (SyntaxError, ValueError) as exc:
        return [type(exc), str(exc)]


def contents(code: types.CodeType):
    inside = [
        contents(one) if isinstance(one, types.CodeType) else repr(one) for one in code.co_consts
    ]
    lines = [line for _, _, line in code.co_lines()]
    return [code.co_name, code.co_code, code.co_names, lines, inside]
