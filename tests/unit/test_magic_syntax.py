"""The rewriting of notebook lines: what becomes a call, and what is left alone."""

from __future__ import annotations

import random

import pytest
from costs import least_cpu_seconds

from atoll.guest.cells import magics


def translated(code):
    found = magics.translate(code)
    return None if found is None else found[0]


@pytest.mark.parametrize(
    ("code", "python"),
    [
        ("!ls -la", "__magic__('!', 'ls -la')"),
        ("  !ls", "  __magic__('!', 'ls')"),
        ("!!ls", "__magic__('!=', 'ls')"),
        ("x = !ls", "x = __magic__('!=', 'ls')"),
        ("a, b = !ls", "a, b = __magic__('!=', 'ls')"),
        ("x[0].y = !ls", "x[0].y = __magic__('!=', 'ls')"),
        ("x = %pwd", "x = __magic__('%', 'pwd')"),
        ("%time f()", "__magic__('%', 'time f()')"),
        ("len?", "help(len)"),
        ("??os.path", "help(os.path)"),
        ("%matplotlib inline", "None"),
        ("!a \\\n b \\\n c\nd", "__magic__('!', 'a  b  c')\n\n\nd"),
        ("!echo 'it\nx = 1", "__magic__('!', \"echo 'it\")\nx = 1"),
        ("!ls\r\nx = 1\r", "__magic__('!', 'ls')\nx = 1\r"),
        ("%%time\n!ls", "__magic__('%%', 'time')\n__magic__('!', 'ls')"),
        ("\n# why\n%%bash -e\nls (\n'", "\n# why\n__magic__('%%', 'bash -e', \"ls (\\n'\")"),
        ("x = {\n}\n%cd", "x = {\n}\n__magic__('%', 'cd')"),
        ("x = 'a' # it's (\n!ls", "x = 'a' # it's (\n__magic__('!', 'ls')"),
    ],
)
def test_commands_become_calls(code, python):
    assert translated(code) == python


@pytest.mark.parametrize(
    "code",
    [
        "x = 1",
        "'''\n!ls\n'''",
        'f"""\n%time\n"""',
        "r'''\\\n!ls\n'''",
        "'''\\'''\n!ls\n'''",
        "a = b \\\n % c",
        "a = (b\n% c\n)",
        "a = [\n  '!',\n!ls",
        "s = 'a\\\n!ls'",
        "% c",
        "x % y",
        "x %= 3",
        "x != y",
        "y = x != 3",
        "is it so?",
        "f(x)?",
        "?f(x)",
        "# !ls",
        "# %time\n",
        "x == !y",
    ],
)
def test_python_and_what_is_neither_is_left_alone(code):
    assert translated(code) is None


def test_every_line_keeps_its_number():
    code = "%cd /\nx = 1\n!a \\\n b\n\n'''\n%no\n'''\ny = %pwd\nlast"
    assert translated(code).split("\n")[8:] == ["y = __magic__('%', 'pwd')", "last"]
    assert len(translated(code).split("\n")) == len(code.split("\n"))


def test_random_text_neither_raises_nor_changes_the_number_of_lines():
    pieces = ["!", "%", "?", "'", '"', '"""', "\\", "\n", "(", ")", "#", "x", " ", "=", "%%", "a b"]
    dice = random.Random(12)
    for _ in range(3000):
        code = "%cd\n" + "".join(dice.choice(pieces) for _ in range(30))
        python = translated(code)
        assert len(python.split("\n")) == len(code.split("\n"))


@pytest.mark.parametrize(
    "piece", ["'", '"""', "\\", "= ", "=", "? ", "!x\\\n", "((", "'\\", "x = '\n", "%a=!", "\t"]
)
def test_time_grows_with_the_length_alone(piece):
    def cost(length):
        text = "%cd\n" + piece * (length // len(piece)) + "\n!x"
        return least_cpu_seconds(lambda: magics.translate(text))

    assert cost(200_000) < 40 * cost(20_000) + 0.1
