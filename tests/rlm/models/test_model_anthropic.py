"""Anthropic's dialect: system and turns, caching, events, usage."""

from __future__ import annotations

import pytest
from model_standin import KEY, StandIn, answer, fails, stream

from atoll.agent.rlm.models.client import HttpModel
from atoll.agent.rlm.models.types import Message
from atoll.errors import ConfigError, ModelReplyError, ModelUnavailableError

ASK = [Message("system", "Be brief."), Message("user", "Hello")]
MARK = {"cache_control": {"type": "ephemeral"}}
USAGE = {
    "input_tokens": 10,
    "output_tokens": 5,
    "cache_read_input_tokens": 80,
    "cache_creation_input_tokens": 20,
}


def whole(text: str, reason: str = "end_turn") -> dict:
    parts = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": text}]
    return {"type": "message", "content": parts, "stop_reason": reason, "usage": USAGE}


def delta(text: str) -> dict:
    return {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}


START = {"type": "message_start", "message": {"usage": {**USAGE, "output_tokens": 1}}}
ENDED = {
    "type": "message_delta",
    "delta": {"stop_reason": "max_tokens"},
    "usage": {"output_tokens": 5},
}
STOP = {"type": "message_stop"}


async def test_a_request_has_the_system_apart_and_the_key_in_its_header(
    server: StandIn, anthropic: HttpModel
):
    server.acts = [answer(whole("Hi"))]
    await anthropic.complete(ASK, max_tokens=9, temperature=0.5, stop=["END", " "])
    seen = server.seen[0]
    assert seen.path == "/v1/messages"
    assert seen.headers["x-api-key"] == KEY
    assert seen.headers["anthropic-version"] == "2023-06-01"
    assert seen.body == {
        "model": "claude-sonnet-4-5",
        "max_tokens": 9,
        "system": [{"type": "text", "text": "Be brief.", **MARK}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
        "temperature": 0.5,
        "stop_sequences": ["END"],
    }


async def test_messages_of_one_role_become_one_turn_and_the_last_turn_is_cached(
    server: StandIn, anthropic: HttpModel
):
    server.acts = [answer(whole("Hi"))]
    said = [
        ("user", "a"),
        ("user", "b"),
        ("assistant", "c"),
        ("system", "s"),
        ("user", ""),
        ("user", "d"),
    ]
    await anthropic.complete([Message(role, text) for role, text in said])  # type: ignore[arg-type]
    body = server.seen[0].body
    assert body["max_tokens"] == 32_000
    assert [one["role"] for one in body["messages"]] == ["user", "assistant", "user"]
    assert [one["text"] for one in body["messages"][0]["content"]] == ["a", "b"]
    assert body["messages"][2]["content"] == [{"type": "text", "text": "d", **MARK}]
    assert "cache_control" not in body["messages"][0]["content"][-1]
    assert body["system"][0]["text"] == "s"


async def test_a_conversation_must_begin_with_the_user(anthropic: HttpModel):
    with pytest.raises(ConfigError, match="must be the user's"):
        await anthropic.complete([Message("assistant", "Hi")])


async def test_a_whole_answer_is_its_text_without_the_thinking(
    server: StandIn, anthropic: HttpModel
):
    server.acts = [answer(whole("Hi"))]
    reply = await anthropic.complete(ASK)
    assert (reply.text, reply.finish) == ("Hi", "stop")
    usage = reply.usage
    assert (usage.input_tokens, usage.output_tokens) == (110, 5)
    assert (usage.cached_tokens, usage.written_tokens) == (80, 20)


async def test_a_streamed_answer_is_handed_on_in_pieces_with_its_usage(
    server: StandIn, anthropic: HttpModel
):
    thinking = {
        "type": "content_block_delta",
        "delta": {"type": "thinking_delta", "thinking": "hm"},
    }
    server.acts = [
        stream(START, {"type": "ping"}, thinking, delta("Hel"), delta("lo"), ENDED, STOP, end=b"")
    ]
    pieces: list[str] = []
    reply = await anthropic.complete(ASK, on_text=pieces.append)
    assert pieces == ["Hel", "lo"]
    assert (reply.text, reply.finish) == ("Hello", "length")
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (110, 5)
    assert not reply.usage.estimated


async def test_an_error_in_the_stream_before_any_text_is_the_servers(
    server: StandIn, anthropic: HttpModel
):
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    server.acts = [stream(START, error)]
    with pytest.raises(ModelUnavailableError, match="overloaded_error"):
        await anthropic.complete(ASK, on_text=lambda _: None)


async def test_an_error_in_the_stream_after_text_says_how_much_came(
    server: StandIn, anthropic: HttpModel
):
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    server.acts = [stream(START, delta("Hello"), error)]
    with pytest.raises(ModelReplyError, match="broke off after 5 characters") as caught:
        await anthropic.complete(ASK, on_text=lambda _: None)
    assert caught.value.received == 5


async def test_a_server_that_knows_no_caching_is_asked_without(
    server: StandIn, anthropic: HttpModel
):
    told = "system.0.cache_control: Extra inputs are not permitted"
    server.acts = [fails(400, "invalid_request_error", told), answer(whole("Hi"))]
    await anthropic.complete(ASK)
    assert server.seen[1].body["system"] == [{"type": "text", "text": "Be brief."}]
