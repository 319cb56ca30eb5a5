"""Queries that promise their answers: a plain loop of them is one batch on the host."""

from __future__ import annotations

import threading

import pytest

from atoll import Capability

pytestmark = pytest.mark.needs(Capability.BRIDGE)


@pytest.fixture
def asked():
    return []


@pytest.fixture
def lazy(open_box, asked):
    def answer(prompt):
        asked.append(prompt)
        if prompt == "bad":
            raise RuntimeError("no")
        return f"A:{prompt}"

    return open_box(lazy_queries=True, on_llm_query=answer)


def test_a_loop_of_queries_runs_side_by_side(open_box):
    together = threading.Barrier(8, timeout=20)
    box = open_box(lazy_queries=True, on_llm_query=lambda prompt: f"{prompt}{together.wait() * 0}")
    box.execute("answers = [llm_query(f'q{n}') for n in range(8)]")
    assert box.execute("[str(one) for one in answers]").value == [f"q{n}0" for n in range(8)]


def test_a_promise_is_used_like_a_text(lazy):
    lazy.execute("a, b = llm_query('x'), llm_query('y')")
    uses = "(len(a), a.upper(), 'x' in a, a == 'A:x', f'{a:>4}', a + '!', '!' + a, a[:1], a < b)"
    assert lazy.execute(uses).value == (
        3, "A:X", True, True, " A:x", "A:x!", "!A:x", "A", True,
    )  # fmt: skip
    assert lazy.execute("{'k': [a]}").value == {"k": ["A:x"]}
    assert lazy.execute("print(b)").stdout == "A:y\n"
    assert lazy.get_variable("a") == "A:x"


def test_what_nobody_uses_is_never_asked(lazy, asked):
    lazy.execute("unused = llm_query('never')")
    assert asked == []


def test_a_failed_one_fails_where_it_is_used_and_nowhere_else(lazy):
    lazy.execute("good, bad = llm_query('good'), llm_query('bad')")
    assert lazy.execute("good.upper()").value == "A:GOOD"
    assert "RuntimeError: no" in lazy.execute("print(bad)").error
    assert lazy.execute("good + ''").value == "A:good"
