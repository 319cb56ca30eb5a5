"""What models write, taken apart."""

from __future__ import annotations

import time

import pytest

from atoll.agent.rlm.replies import parse, plain_answer, without_thoughts

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
        ("FINAL(FINAL(FINAL(", None),
        ("FINAL(FINAL_VAR(total))", None),
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
    ("text", "rest"),
    [
        ("<think>\nFINAL('no')\n</think>\nIt is 5.", "\nIt is 5."),
        ("<thinking>a</thinking><think>b</think>c", "c"),
        ("It may be 4.\n</think>\n\nIt is 5.", "\n\nIt is 5."),
        ("<think>it never ends ```python\nx\n```", ""),
        ("</think>", ""),
        ("A block begins with <think> and ends with </think>.", None),
        ("x = '</think>'", None),
        ("", None),
    ],
)
def test_reasoning_that_a_server_leaves_in_a_reply_is_taken_out(text, rest):
    assert without_thoughts(text) == (text if rest is None else rest)


@pytest.mark.parametrize(
    ("text", "prose"),
    [
        ("```javascript\nconsole.log(1)\n```", ""),
        ("```bash\nls\n```\n\n```sql\nSELECT 1\n```", ""),
        ('{"name": "FINAL", "arguments": {"answer": "5"}}', ""),
        ('<tool_call>\n{"tool": "grep", "parameters": {}}\n</tool_call>', ""),
        ('```json\n{"total": 5}\n```', '```json\n{"total": 5}\n```'),
        ("It is:\n```yaml\na: 1\n```", "It is:\n```yaml\na: 1\n```"),
        ('{"name": "Ada", "age": 5}', '{"name": "Ada", "age": 5}'),
        ("[1, 2]", "[1, 2]"),
    ],
)
def test_a_reply_of_nothing_but_code_or_a_tool_call_is_no_prose(text, prose):
    reply = parse(text)
    assert (reply.cells, reply.prose, plain_answer(text)) == ((), prose, prose)


def test_an_answer_with_quotes_in_prose_is_a_cell_so_that_they_are_checked():
    reply = parse("So:\nFINAL('it is so', quotes=['a', 'b'])")
    assert reply.cells == ("FINAL('it is so', quotes=['a', 'b'])",)
    assert reply.answer is None
    assert plain_answer("FINAL('it is so', quotes=['a', 'b'])") == "it is so"


def test_an_answer_without_quotation_marks_may_be_the_name_of_a_variable():
    assert (parse("FINAL(total)").answer, parse("FINAL(total)").variable) == ("total", "total")
    assert parse("FINAL('total')").variable is None
    assert parse("FINAL(two words)").variable is None


@pytest.mark.parametrize(
    "text",
    [
        "```" + " " * 10**6 + "x`",
        "```" + "a" * 10**6 + "`",
        "<think>" * 10**5,
        "<think></think>" * 50_000,
        "</think>\n" * 10**5,
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
    ids=range(16),
)
def test_a_reply_is_read_in_linear_time(text):
    """A megabyte takes a second or so; what is quadratic takes hours."""
    started = time.process_time()
    parse(text)
    plain_answer(text)
    without_thoughts(text)
    assert time.process_time() - started < 20
