"""map_query, filter_query, reduce_query, extract: typed, batched, cached, priced, resumable."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

import atoll
from atoll import ConfigError
from atoll.agent.rlm.core import RLM
from atoll.agent.rlm.models.scripted import ScriptedModel
from atoll.agent.strategies.schema import Schema, SchemaError, parse_json

ITEMS = [f"order {n} has {n * 3} boxes" for n in range(50)]


def boxes(messages) -> str:
    """The reply of a model that reads the number of boxes of each item."""
    found = re.findall(r"^(\d+): order \d+ has (\d+) boxes$", messages[-1].content, re.MULTILINE)
    return json.dumps({number: int(count) for number, count in found})


def counting(**options) -> ScriptedModel:
    return ScriptedModel([boxes], forever=True, **options)


async def test_items_are_asked_in_batches_and_values_have_the_order_of_items():
    model = counting()
    async with RLM(model) as rlm:
        values = await rlm.operators().map_query(ITEMS, "How many boxes?", int)
    assert list(values) == [n * 3 for n in range(50)]
    assert (len(model.asked), values.coverage, values.failed) == (3, 1.0, {})


async def test_the_price_is_known_before_and_kept():
    model, done = counting(), []
    async with RLM(model) as rlm:
        operators = rlm.operators(lambda *progress: done.append(progress))
        price = operators.price(ITEMS, "How many boxes?", int)
        assert not model.asked
        await operators.map_query(ITEMS, "How many boxes?", int)
        assert operators.price(ITEMS, "How many boxes?", int).calls == 0, "all of it is known"
    used = sum(len(boxes(asked.messages)) for asked in model.asked)
    assert (price.calls, price.cached, len(model.asked)) == (3, 0, 3)
    assert price.tokens_out > used / 8
    assert max(done) == (50, 50)


async def test_a_stopped_run_continues_from_its_file(tmp_path):
    cache = tmp_path / "answers.db"
    first = counting()
    async with RLM(first, query_cache=cache, budget={"calls": 2}) as rlm:
        values = await rlm.operators().map_query(ITEMS, "How many boxes?", int)
    assert (len(values.failed), values.coverage) == (10, 0.8)
    assert "the budget is spent: 2 calls of 2 calls" in values.failed[49]
    assert cache.stat().st_mode & 0o077 == 0
    second = counting()
    async with RLM(second, query_cache=cache) as rlm:
        values = await rlm.operators().map_query(ITEMS, "How many boxes?", int)
        assert list(values) == [n * 3 for n in range(50)]
        assert len(second.asked) == 1, "only what was missing"
        await rlm.operators().map_query(ITEMS, "How many crates?", int)
    assert len(second.asked) == 4, "another instruction is another question"


async def test_a_reply_that_does_not_fit_is_asked_for_once_more_then_left_out():
    model = ScriptedModel(['{"1": "many"}', '{"1": 3}', "no idea", "no idea"])
    async with RLM(model) as rlm:
        operators = rlm.operators()
        assert list(await operators.map_query(["a"], "How many?", int)) == [3]
        assert (
            "item 1: it must be a whole number, not 'many'" in model.asked[1].messages[-1].content
        )
        values = await operators.map_query(["b"], "How many?", int)
    assert (list(values), values.failed) == ([None], {0: "it is not JSON"})


async def test_filter_keeps_the_items_themselves():
    model = ScriptedModel(['{"1": true, "2": "no", "3": "yes"}'])
    async with RLM(model) as rlm:
        assert await rlm.operators().filter_query([{"a": 1}, {"a": 2}, 3], "a is odd") == [
            {"a": 1},
            3,
        ]


async def test_reduce_goes_up_level_by_level_and_numbers_are_computed_by_code():
    model = ScriptedModel(['{"result": "short"}'], forever=True)
    async with RLM(model, query_characters=260) as rlm:
        operators = rlm.operators()
        parts = [letter * 60 for letter in "abcd"]
        assert await operators.reduce_query(parts, "Shorten.") == "short"
        assert len(model.asked) == 3, "two pairs, then what they gave"
        assert await operators.reduce_query([1, 2, None, 9], "sum") == 12
        assert await operators.reduce_query([], "count") == 0
        assert len(model.asked) == 3


async def test_extracted_values_stand_in_the_text():
    said = {"result": [{"name": "Ada", "year": 1815}, {"name": "Bob", "year": 1}]}
    model = ScriptedModel([json.dumps(said)])
    async with RLM(model) as rlm:
        found = await rlm.operators().extract("Ada was born in 1815.", {"name": str, "year": int})
    assert list(found) == [{"name": "Ada", "year": 1815}], "Bob is not in the text"


async def test_batches_run_at_the_same_time():
    all_three = asyncio.Barrier(3)

    async def reply(messages):
        await all_three.wait()  # without an end, if one waited for another
        return boxes(messages)

    async with RLM(reply) as rlm:
        values = await rlm.operators().map_query(ITEMS, "How many boxes?", int)
    assert values.coverage == 1.0


def test_guest_code_uses_them_with_types_and_one_account():
    code = """
found = map_query(["order 1 has 3 boxes", "order 2 has 6 boxes"], "How many boxes?", returns=int)
total = reduce_query(found, "sum")
kept = filter_query(["a", "b"], "it is a")
FINAL(f"{total} {kept} {map_query(['x'], 'What?', {'name': str})}")
"""
    model = ScriptedModel(
        [f"```python\n{code}\n```", boxes, '{"1": true, "2": false}', '{"1": {"name": "n"}}']
    )
    with atoll.RLM(model, backend="native", direct_tokens=1) as rlm:
        answer = rlm.completion("How many boxes?", "a text\n" * 99)
    assert answer.text == "9 ['a'] [{'name': 'n'}]"
    assert answer.calls == 4
    assert "map_query(items, instruction, returns=int)" in model.asked[0].messages[0].content


def test_a_guest_that_asks_for_too_much_is_refused():
    code = "print(map_query(['x'] * 100_001, 'y'))"
    model = ScriptedModel([f"```python\n{code}\n```", "```python\nFINAL('over')\n```"])
    with atoll.RLM(model, backend="native", direct_tokens=1) as rlm:
        assert rlm.completion("What?", "a text\n" * 99).text == "over"
    assert "at most 100,000: give fewer" in model.asked[1].messages[-1].content


def test_operators_for_blocking_code():
    with atoll.RLM(counting()) as rlm:
        operators = rlm.operators()
        assert operators.price(ITEMS, "How many boxes?", int).calls == 3
        assert operators.map_query(ITEMS[:2], "How many boxes?", int) == [0, 3]


@pytest.mark.parametrize(
    ("returns", "value", "checked"),
    [
        (int, "1,200", 1200),
        (int, 3.0, 3),
        (float, "2.5", 2.5),
        (bool, "Yes", True),
        (str, 7, "7"),
        ([str], ["a"], ["a"]),
        ({"n": int}, {"n": "1", "more": 2}, {"n": 1}),
    ],
)
def test_values_are_checked_and_converted(returns, value, checked):
    assert Schema.of(returns).check(value) == checked


@pytest.mark.parametrize(
    ("returns", "value"),
    [(int, "x"), (int, 1.5), (int, True), (bool, 2), (str, None), ([str], "a"), ({"n": int}, {})],
)
def test_values_that_do_not_fit_are_refused(returns, value):
    with pytest.raises(SchemaError, match="it must"):
        Schema.of(returns).check(value)


def test_a_schema_of_another_kind_says_what_to_write():
    with pytest.raises(ConfigError, match="returns must be str, int, float, bool"):
        Schema.of(dict)
    with pytest.raises(SchemaError, match="not JSON"):
        parse_json("[" * 100_000)
    assert parse_json('So: ```json\n{"a": 1}\n```') == {"a": 1}
