"""The model that says what it was told to say."""

from __future__ import annotations

import asyncio

import pytest

from atoll.agent.rlm.models.scripted import ScriptedModel
from atoll.agent.rlm.models.types import Message, Usage
from atoll.errors import ModelRecordError, ModelUnavailableError

ASK = [Message("user", "Hello")]


async def test_replies_come_in_turn_and_what_was_asked_is_kept():
    model = ScriptedModel(["one", lambda messages: messages[-1].content.upper()], usd_per_call=0.25)
    first = await model.complete(ASK, max_tokens=3, temperature=0.5, stop=["x"])
    second = await model.complete(ASK)
    assert (first.text, second.text, first.usd) == ("one", "HELLO", 0.25)
    assert first.usage == Usage(input_tokens=5, output_tokens=1, estimated=True)
    asked = model.asked[0]
    assert asked.messages == tuple(ASK)
    assert (asked.options.max_tokens, asked.options.temperature, asked.options.stop) == (
        3,
        0.5,
        ("x",),
    )
    assert model.left == 0


async def test_an_error_in_the_script_is_raised():
    with pytest.raises(ModelUnavailableError, match="busy"):
        await ScriptedModel([ModelUnavailableError("busy")]).complete(ASK)


async def test_a_script_that_runs_out_says_so():
    model = ScriptedModel(["one"])
    await model.complete(ASK)
    with pytest.raises(ModelRecordError, match="has 1 replies and was asked 2 times"):
        await model.complete(ASK)


async def test_the_last_reply_can_stay():
    model = ScriptedModel(["one", "two"], forever=True)
    assert [(await model.complete(ASK)).text for _ in range(4)] == ["one", "two", "two", "two"]


async def test_a_reply_is_streamed_and_ends_at_a_stop():
    pieces: list[str] = []
    reply = await ScriptedModel(["one END two"]).complete(ASK, stop=["END"], on_text=pieces.append)
    assert reply.text == "".join(pieces) == "one "


async def test_every_reply_is_given_once_to_calls_at_the_same_time():
    replies = [str(number) for number in range(50)]
    model = ScriptedModel(replies, delay=0.001)
    threads = [asyncio.to_thread(lambda: asyncio.run(_ask(model, 10))) for _ in range(5)]
    got = [text for part in await asyncio.gather(*threads) for text in part]
    assert sorted(got, key=int) == replies


async def _ask(model: ScriptedModel, times: int) -> list[str]:
    done = await asyncio.gather(*(model.complete(ASK) for _ in range(times)))
    return [one.text for one in done]


def test_usage_adds_up_and_a_guess_stays_one():
    one = Usage(input_tokens=1, output_tokens=2, cached_tokens=3, written_tokens=4)
    both = one + Usage(input_tokens=10, estimated=True)
    assert both == Usage(
        input_tokens=11, output_tokens=2, cached_tokens=3, written_tokens=4, estimated=True
    )
    assert not (one + one).estimated
