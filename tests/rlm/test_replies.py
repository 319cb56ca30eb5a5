"""What models write, taken apart."""

from __future__ import annotations

import time

import pytest

from atoll.rlm.replies import parse, plain_answer

TRICKY = 'text = """\n```\nnot the end\n```\n"""\nprint(text)'


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        ("```python\nx = 1\n```", ["x = 1"]),
        ("First:\n```repl\na = 1\n```\nthen\n```py\nb = 2\n```\ndone", ["a = 1", "b = 2"]),
        ("```json\n{}\n```\n```python\nx\n```", ["x"]),
        ("```\nx = 1\n```", ["x = 1"]),
        ("~~~python\nx = 1\n~~~", ["x = 1"]),
        ("````python\nx = '```'\n````", ["x = '```'"]),
        (
            "1. so:\n   ```python\n   for n in y:\n       print(n)\n   ```",
            ["for n in y:\n    print(n)"],
        ),
        ("```python\nx = 1\nprint(x)", ["x = 1\nprint(x)"]),
        (f"```python\n{TRICKY}\n```\nand that was it", [TRICKY]),
        ("<code>\nx = 1\n</code>", ["x = 1"]),
        ("print(peek(100))", ["print(peek(100))"]),
        ("I would look at it.", []),
        ("", []),
        ("```python\n\n```", []),
    ],
)
def test_cells_are_found(text, cells):
    assert list(parse(text).cells) == cells


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("FINAL(42)", "42"),
        ("So:\nFINAL('it is (a (nested) one)')", "it is (a (nested) one)"),
        ('FINAL("a \\"quoted\\" word")', 'a "quoted" word'),
        ("FINAL(the pump (north) isn't working)", "the pump (north) isn't working"),
        ('FINAL("""two\nlines""")', "two\nlines"),
        ("FINAL(never closed", "never closed"),
        ("call FINAL(x) when done", None),
        ("no answer", None),
    ],
)
def test_an_answer_in_prose_is_found(text, answer):
    assert parse(text).answer == answer


def test_an_answer_within_code_is_the_codes_own():
    reply = parse("```python\nFINAL('x')\n```")
    assert (reply.cells, reply.answer) == (("FINAL('x')",), None)


def test_code_then_an_answer_in_prose_are_both_given():
    reply = parse("```python\nx = 1\n```\nFINAL_VAR('x')")
    assert (reply.cells, reply.variable) == (("x = 1",), "x")


def test_a_fence_that_is_open_when_the_reply_was_cut_is_no_cell():
    text = "```python\nx = 1\n```\n```python\ny ="
    assert parse(text).cells == ("x = 1", "y =")
    assert parse(text, is_cut=True).cells == ("x = 1",)
    assert parse("print(peek(1))\nx =  1", is_cut=True).cells == ()


@pytest.mark.parametrize(
    "text",
    [
        "(" * 10**6,
        "FINAL(" + "'" * 10**5,
        'FINAL("' + '\\"' * 500_000,
        "FINAL(" + "'\\" * 400_000,
        "FINAL(" + "'''a\\" * 150_000,
        "FINAL(" * 150_000,
        "```\n" * 10**5,
        "```python\n" + "'''\n```\n" * 10**5,
        "```\n'''\n```\n\"\"\"\n" * 60_000,
        "<code>" * 10**5,
        "f(" * 9_000,
    ],
    ids=range(11),
)
def test_a_reply_is_read_in_linear_time(text):
    """A megabyte takes a second or so; what is quadratic takes hours."""
    started = time.process_time()
    parse(text)
    plain_answer(text)
    assert time.process_time() - started < 20
