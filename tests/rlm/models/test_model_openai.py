"""OpenAI's dialect: what is sent, and how answers are read, whole and streamed."""

from __future__ import annotations

import pytest
from model_standin import KEY, Make, StandIn, answer, chat, event, fails, head, piece, say, stream

from atoll.agent.rlm.models.types import Message, estimated_usage
from atoll.errors import ModelRefusedError, ModelReplyError

ASK = [Message("system", "Be brief."), Message("user", "Hello")]
USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 60},
}


async def test_a_request_has_messages_options_and_the_key_in_its_header(
    server: StandIn, openai: Make
):
    server.acts = [answer(chat("Hi"))]
    await openai().complete(ASK, max_tokens=9, temperature=0.5, stop=["END"])
    seen = server.seen[0]
    assert seen.path == "/v1/chat/completions"
    assert seen.headers["authorization"] == f"Bearer {KEY}"
    assert seen.body == {
        "model": "gpt-5",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello"},
        ],
        "max_tokens": 9,
        "temperature": 0.5,
        "stop": ["END"],
    }


async def test_without_a_key_no_header_is_sent(server: StandIn, openai: Make):
    server.acts = [answer(chat("Hi"))]
    await openai(key=None).complete(ASK)
    assert "authorization" not in server.seen[0].headers


async def test_the_provider_itself_is_asked_for_max_completion_tokens(
    server: StandIn, openai: Make
):
    server.acts = [answer(chat("Hi"))]
    await openai(official=True).complete(ASK, max_tokens=9)
    assert server.seen[0].body["max_completion_tokens"] == 9
    assert "max_tokens" not in server.seen[0].body


async def test_a_whole_answer_has_text_usage_and_finish(server: StandIn, openai: Make):
    server.acts = [answer(chat("Hi", "length", usage=USAGE))]
    reply = await openai().complete(ASK)
    assert (reply.text, reply.finish, reply.model) == ("Hi", "length", "openai/gpt-5")
    usage = reply.usage
    assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens) == (100, 7, 60)
    assert not usage.estimated
    assert reply.usd is None
    assert reply.duration_ms > 0


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": 3}])
async def test_usage_that_is_not_given_is_estimated_and_says_so(
    server: StandIn, openai: Make, usage
):
    server.acts = [answer(chat("x" * 400, usage=usage))]
    reply = await openai().complete(ASK)
    assert reply.usage.estimated
    assert reply.usage == estimated_usage(ASK, "x" * 400)
    assert reply.usage.output_tokens > 10


async def test_usage_that_cannot_be_is_none_at_all(server: StandIn, openai: Make):
    counts = {"prompt_tokens": -5, "completion_tokens": "many"}
    server.acts = [answer(chat("Hi", usage=counts))]
    usage = (await openai().complete(ASK)).usage
    assert (usage.input_tokens, usage.output_tokens) == (0, 0)


async def test_a_streamed_answer_is_handed_on_in_pieces_with_its_usage(
    server: StandIn, openai: Make
):
    server.acts = [
        stream(
            piece("Hel"),
            piece(None),
            piece("lo"),
            piece(None, "stop"),
            {"choices": [], "usage": USAGE},
        )
    ]
    pieces: list[str] = []
    reply = await openai().complete(ASK, on_text=pieces.append)
    assert pieces == ["Hel", "lo"]
    assert (reply.text, reply.finish, reply.usage.output_tokens) == ("Hello", "stop", 7)
    assert not reply.usage.estimated
    body = server.seen[0].body
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}


async def test_a_stream_may_be_cut_anywhere_between_its_bytes(server: StandIn, openai: Make):
    data = b": a comment\r\n\r\n" + event(piece("Gr\u00fc\u00dfe \U0001f600")).replace(
        b"\n", b"\r\n"
    )
    data += b'event: more\ndata: {"choices":\ndata: [{"delta": {"content": "!"},\ndata: "finish_reason": "stop"}]}\n\n'
    data += b"data: [DONE]\n\n"
    server.acts = [say(head(kind="text/event-stream"), *(bytes([one]) for one in data))]
    reply = await openai().complete(ASK, on_text=lambda _: None)
    assert reply.text == "Gr\u00fc\u00dfe \U0001f600!"


async def test_raw_utf8_that_is_cut_within_a_character_is_whole_again(
    server: StandIn, openai: Make
):
    data = 'data: {"choices": [{"delta": {"content": "Gr\u00fc\u00dfe"}, "finish_reason": "stop"}]}\n\n'
    server.acts = [say(head(kind="text/event-stream"), *(bytes([one]) for one in data.encode()))]
    assert (await openai().complete(ASK, on_text=lambda _: None)).text == "Gr\u00fc\u00dfe"


async def test_a_stream_that_has_said_its_end_needs_no_done(server: StandIn, openai: Make):
    server.acts = [stream(piece("Hi"), piece(None, "stop"), end=b"")]
    assert (await openai().complete(ASK, on_text=lambda _: None)).text == "Hi"


async def test_a_server_that_does_not_stream_is_understood(server: StandIn, openai: Make):
    server.acts = [answer(chat("Hi"))]
    pieces: list[str] = []
    await openai().complete(ASK, on_text=pieces.append)
    assert pieces == ["Hi"]


@pytest.mark.parametrize(
    "pieces", [["one END two"], ["one E", "ND two"], ["one ", "E", "N", "D", " two"]]
)
@pytest.mark.parametrize("streamed", [True, False])
async def test_the_text_ends_at_a_stop_that_the_server_passed_over(
    server: StandIn, openai: Make, pieces, streamed
):
    server.acts = [
        stream(*map(piece, pieces), piece(None, "length"))
        if streamed
        else answer(chat("".join(pieces)))
    ]
    handed: list[str] = []
    reply = await openai().complete(ASK, stop=["END"], on_text=handed.append if streamed else None)
    assert (reply.text, reply.finish) == ("one ", "stop")
    assert "".join(handed) == ("one " if streamed else "")


async def test_what_only_begins_like_a_stop_is_not_lost(server: StandIn, openai: Make):
    server.acts = [stream(piece("one EN"), piece(None, "stop"))]
    handed: list[str] = []
    await openai().complete(ASK, stop=["END"], on_text=handed.append)
    assert "".join(handed) == "one EN"


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("temperature", "Unsupported value: 'temperature' does not support 0.5 with this model."),
        ("stop", "Unsupported parameter: 'stop' is not supported with this model."),
    ],
)
async def test_an_option_that_a_model_does_not_take_is_left_out_from_then_on(
    server: StandIn, openai: Make, option: str, told: str
):
    server.acts = [fails(400, "invalid_request_error", told), answer(chat("a END b"))]
    model = openai(max_retries=0)
    for _ in range(2):
        reply = await model.complete(ASK, temperature=0.5, stop=["END"])
        assert reply.text == "a "
    assert [option in seen.body for seen in server.seen] == [True, False, False]


@pytest.mark.parametrize(
    "message",
    [
        "max_tokens is too large: 4096. This model supports at most 2048 completion tokens.",
        "max_tokens: 4096 > 2048, which is the maximum allowed number of output tokens",
        "`max_tokens` must be less than or equal to `2048`",
        "Range of max_tokens should be [1, 2048]",
        "max_tokens exceeds the maximum of 2,048",
    ],
)
async def test_the_limit_of_tokens_that_a_server_names_is_kept(
    server: StandIn, openai: Make, message: str
):
    server.acts = [fails(400, "invalid_request_error", message), answer(chat("ok"))]
    model = openai()
    for _ in range(2):
        assert (await model.complete(ASK, max_tokens=4096)).text == "ok"
    sent = [one.body.get("max_tokens") for one in server.seen]
    assert sent == [4096, 2048, 2048], "it is never left out: a reply could cost anything"


async def test_a_limit_that_is_too_large_without_a_number_is_an_error(
    server: StandIn, openai: Make
):
    said = "max_tokens is too large: this model does not support it"
    server.acts = [fails(400, "invalid_request_error", said)]
    with pytest.raises(ModelRefusedError):
        await openai().complete(ASK, max_tokens=4096)
    assert len(server.seen) == 1


async def test_the_limit_of_tokens_is_given_by_the_other_name_where_one_is_refused(
    server: StandIn, openai: Make
):
    told = (
        "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead."
    )
    server.acts = [fails(400, "unsupported_parameter", told), answer(chat("Hi"))]
    await openai(max_retries=0).complete(ASK, max_tokens=5)
    assert server.seen[1].body["max_completion_tokens"] == 5
    assert "max_tokens" not in server.seen[1].body


@pytest.mark.parametrize(
    "value", [{}, {"choices": []}, {"choices": "no"}, {"choices": [None]}, {"choices": [{}]}]
)
async def test_an_answer_without_a_message_is_an_error(server: StandIn, openai: Make, value):
    server.acts = [answer(value)]
    with pytest.raises(ModelReplyError, match="no message in it"):
        await openai().complete(ASK)


async def test_half_characters_cross_in_neither_direction(server: StandIn, openai: Make):
    server.acts = [
        say(
            head(), b'{"choices": [{"message": {"content": "a\\ud800b"}, "finish_reason": "stop"}]}'
        )
    ]
    reply = await openai().complete([Message("user", "x\udc80y")])
    assert reply.text == "a?b"
    assert server.seen[0].body["messages"][0]["content"] == "x?y"


async def test_a_model_can_be_asked_in_one_loop_after_another(server: StandIn, openai: Make):
    import asyncio

    server.acts = [answer(chat("Hi"))]
    model = openai()
    await model.complete(ASK)
    reply = await asyncio.to_thread(lambda: asyncio.run(model.complete(ASK)))
    assert reply.text == "Hi"
