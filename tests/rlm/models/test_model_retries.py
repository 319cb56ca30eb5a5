"""Asking again: when, how often, after how long; and when not."""

from __future__ import annotations

import email.utils
import time
from urllib.parse import urlsplit

import pytest
from model_standin import Make, StandIn, answer, chat, event, fails, head, piece, say, stream

from atoll.agent.rlm.models.types import Message
from atoll.errors import (
    ModelError,
    ModelRefusedError,
    ModelReplyError,
    ModelTimeoutError,
    ModelUnavailableError,
)

ASK = [Message("user", "Hello")]


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
async def test_a_passing_failure_is_asked_again(server: StandIn, openai: Make, naps, status):
    server.acts = [fails(status), fails(status), answer(chat("Hi"))]
    assert (await openai().complete(ASK)).text == "Hi"
    assert len(naps) == 2
    assert 0.25 <= naps[0] <= 0.5
    assert 0.5 <= naps[1] <= 1.0


async def test_retries_end_and_the_error_is_retryable(server: StandIn, openai: Make, naps):
    server.acts = [fails(503, "overloaded_error")]
    with pytest.raises(ModelUnavailableError) as caught:
        await openai(max_retries=2).complete(ASK)
    where = f"openai/gpt-5 at {urlsplit(server.url).netloc}"
    assert str(caught.value) == f"{where}: status 503, overloaded_error; asked 3 times"
    assert caught.value.retryable
    assert (len(server.seen), len(naps)) == (3, 2)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (
            fails(404, "", "model not found"),
            "status 404: “model not found”. Check the model's name",
        ),
        (answer({"error": "no such\n model"}, 404), "status 404: “no such model”. Check"),
        (answer({"detail": "Not Found"}, 404), "status 404: “Not Found”. Check"),
        (answer({"message": "gone"}, 404), "status 404: “gone”. Check"),
        (say(head(500, "text/plain"), b"boom"), "status 500: “boom”; asked once"),
        (say(head(502, "text/html"), b"<html>Bad Gateway"), "status 502; asked once"),
        (fails(400, "", "a\x1b[2Jb"), "status 400: “a\\x1b[2Jb”"),
        (fails(400, "", "é" * 400), f"status 400: “{'é' * 299}…”"),
    ],
)
async def test_an_error_has_the_server_s_own_words(server: StandIn, openai: Make, act, said):
    server.acts = [act]
    with pytest.raises(ModelError) as caught:
        await openai(max_retries=0).complete(ASK)
    assert str(caught.value).partition(": ")[2].startswith(said)


async def test_waits_grow_to_a_limit(server: StandIn, openai: Make, naps):
    server.acts = [fails(503)]
    with pytest.raises(ModelUnavailableError):
        await openai(max_retries=9).complete(ASK)
    assert max(naps) <= 8
    assert min(naps[5:]) >= 4


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
async def test_a_lasting_failure_is_not_asked_again(server: StandIn, openai: Make, naps, status):
    server.acts = [fails(status)]
    with pytest.raises(ModelRefusedError) as caught:
        await openai().complete(ASK)
    assert caught.value.status == status
    assert (len(server.seen), naps) == (1, [])


@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [
        (429, "insufficient_quota", "The provider's account has no credit left"),
        (400, "context_length_exceeded", "Give the tokens that the model's context window has"),
    ],
)
async def test_a_limit_that_stays_is_not_asked_again_and_the_error_says_what_to_do(
    server: StandIn, openai: Make, status, code, advice
):
    server.acts = [fails(status, code)]
    with pytest.raises(ModelRefusedError, match=f"status {status}, {code}. {advice}"):
        await openai().complete(ASK)
    assert len(server.seen) == 1


async def test_the_server_says_how_long_to_wait(server: StandIn, openai: Make, naps):
    date = email.utils.formatdate(time.time() + 30, usegmt=True)
    server.acts = [
        fails(429, retry_after="7"),
        fails(429, retry_after=date),
        fails(429, retry_after="soon"),
        fails(429, retry_after="-3"),
        answer(chat("Hi")),
    ]
    await openai().complete(ASK)
    assert naps[0] == 7
    assert 10 <= naps[1] <= 30
    assert max(naps[2:]) <= 4


async def test_the_wait_that_a_server_wants_has_a_limit(server: StandIn, openai: Make, naps):
    server.acts = [fails(429, retry_after="100000"), answer(chat("Hi"))]
    await openai(timeout_seconds=600).complete(ASK)
    assert naps == [60]


async def test_a_wait_beyond_the_deadline_is_not_begun(server: StandIn, openai: Make, naps):
    server.acts = [fails(429, retry_after="50")]
    with pytest.raises(ModelUnavailableError, match="asked once"):
        await openai(timeout_seconds=40).complete(ASK)
    assert naps == []


async def test_a_connection_that_breaks_is_made_again(server: StandIn, openai: Make):
    server.acts = [say(), say(head(content_length="100"), b"{"), answer(chat("Hi"))]
    assert (await openai().complete(ASK)).text == "Hi"


async def test_a_server_that_is_not_there_is_unavailable(server: StandIn, openai: Make, naps):
    model, where = openai(max_retries=1), urlsplit(server.url).netloc
    await server.stop()
    with pytest.raises(ModelUnavailableError, match="connection refused; asked 2 times") as caught:
        await model.complete(ASK)
    assert f"at {where}: " in str(caught.value)
    assert "Is the model server running?" in str(caught.value)
    assert len(naps) == 1


@pytest.mark.parametrize("end", [b"", event({"error": {"type": "server_error"}})])
async def test_a_stream_that_breaks_before_any_text_is_asked_again(
    server: StandIn, openai: Make, end
):
    server.acts = [stream(piece(""), end=end), stream(piece("Hi"), piece(None, "stop"))]
    assert (await openai().complete(ASK, on_text=lambda _: None)).text == "Hi"


@pytest.mark.parametrize("end", [b"", event({"error": {"type": "server_error"}}), b"data: {\n\n"])
async def test_a_stream_that_breaks_after_text_is_never_asked_again(
    server: StandIn, openai: Make, end
):
    server.acts = [stream(piece("Hel"), end=end)]
    pieces: list[str] = []
    with pytest.raises(ModelReplyError, match="broke off after 3 characters"):
        await openai().complete(ASK, on_text=pieces.append)
    assert pieces == ["Hel"]
    assert len(server.seen) == 1


async def test_a_silent_stream_is_asked_again_and_then_a_timeout(
    server: StandIn, openai: Make, naps
):
    server.acts = [server.silent(head(kind="text/event-stream"))]
    with pytest.raises(ModelTimeoutError, match=r"silent for 0\.05 s; asked 2 times"):
        await openai(idle_seconds=0.05, max_retries=1).complete(ASK, on_text=lambda _: None)


async def test_a_prompt_that_is_too_long_is_told_by_its_code(server: StandIn, openai: Make):
    told = [
        fails(400, "context_length_exceeded"),
        fails(400, "invalid_request_error", "prompt is too long: 250000 tokens > 200000 maximum"),
        fails(400, "exceed_context_size_error", "the request exceeds the available context size"),
    ]
    for one in told:
        server.acts = [one]
        with pytest.raises(ModelRefusedError) as caught:
            await openai().complete(ASK)
        assert caught.value.code == "context_length_exceeded"


async def test_a_redirect_is_not_followed(server: StandIn, openai: Make):
    server.acts = [answer({}, 307, location=server.url + "/elsewhere")]
    with pytest.raises(ModelRefusedError, match="Redirects are not followed"):
        await openai().complete(ASK)
    assert len(server.seen) == 1
