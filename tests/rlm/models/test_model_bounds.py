"""What a broken or hostile server can do: not much. Deadlines, caps, cancelling, proxies."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest
from model_standin import Make, StandIn, answer, chat, event, head, piece, say

from atoll.agent.rlm.models.client import Address, HttpModel, Limits
from atoll.agent.rlm.models.dialects import OpenAI
from atoll.agent.rlm.models.types import Message
from atoll.errors import ConfigError, ModelRefusedError, ModelReplyError, ModelTimeoutError

ASK = [Message("user", "Hello")]


def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
    """An answer that never ends and is never silent."""

    async def act() -> None:
        writer.write(head(kind="text/event-stream"))
        while True:
            writer.write(b": still there\n\n")
            await writer.drain()
            await asyncio.sleep(0.01)

    return act()


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_call_ends_at_its_deadline_however_busy_the_server(
    server: StandIn, openai: Make, streamed
):
    server.acts = [drip]
    on_text = (lambda _: None) if streamed else None
    with pytest.raises(ModelTimeoutError, match=r"no complete answer within timeout_seconds=0\.3"):
        await openai(timeout_seconds=0.3).complete(ASK, on_text=on_text)
    await asyncio.wait_for(server.gone.wait(), 30)


async def test_an_answer_that_comes_whole_may_be_silent_for_longer_than_a_stream(
    server: StandIn, openai: Make
):
    async def slow(_reader, writer):
        await asyncio.sleep(0.2)
        writer.write(head() + json.dumps(chat("Hi")).encode())

    server.acts = [slow]
    assert (await openai(idle_seconds=0.05).complete(ASK)).text == "Hi"


async def test_cancelling_closes_the_connection_at_once(server: StandIn, openai: Make):
    got = asyncio.Event()
    server.acts = [server.silent(head(kind="text/event-stream"), event(piece("Hi")))]
    call = asyncio.create_task(openai().complete(ASK, on_text=lambda _: got.set()))
    await asyncio.wait_for(got.wait(), 30)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.wait_for(server.gone.wait(), 30)


async def test_cancelling_before_the_answer_begins_closes_the_connection(
    server: StandIn, openai: Make
):
    server.acts = [server.silent()]
    call = asyncio.create_task(openai().complete(ASK))
    await asyncio.wait_for(server.asked.wait(), 30)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.wait_for(server.gone.wait(), 30)


async def test_an_error_of_the_listeners_goes_through_and_closes_the_connection(
    server: StandIn, openai: Make
):
    def listen(_text: str) -> None:
        raise TimeoutError("the listener's own")

    server.acts = [server.silent(head(kind="text/event-stream"), event(piece("Hi")))]
    with pytest.raises(TimeoutError, match="the listener's own"):
        await openai().complete(ASK, on_text=listen)
    await asyncio.wait_for(server.gone.wait(), 30)


async def test_an_answer_beyond_its_limit_is_not_read_on(server: StandIn, openai: Make):
    async def flood(_reader, writer):
        writer.write(head())
        while True:
            writer.write(b"x" * 10_000)
            await writer.drain()

    server.acts = [flood]
    with pytest.raises(ModelReplyError, match=r"the answer has over 50,000 bytes"):
        await openai(max_bytes=50_000).complete(ASK)
    await asyncio.wait_for(server.gone.wait(), 30)
    assert len(server.seen) == 1


async def test_a_stream_beyond_its_limit_is_not_read_on(server: StandIn, openai: Make):
    server.acts = [say(head(kind="text/event-stream"), *[event(piece("x" * 1000))] * 100)]
    with pytest.raises(ModelReplyError, match=r"the answer has over 50,000 bytes"):
        await openai(max_bytes=50_000).complete(ASK, on_text=lambda _: None)


@pytest.mark.parametrize(
    "line", [b"data: " + b"x" * 10_000, b"data: x\n" * 5_000, b": " + b"x" * 10_000]
)
async def test_an_event_beyond_its_limit_is_not_collected(server: StandIn, openai: Make, line):
    server.acts = [server.silent(head(kind="text/event-stream"), line)]
    with pytest.raises(ModelReplyError, match=r"an event has over 4,096 bytes"):
        await openai(max_event_bytes=4096).complete(ASK, on_text=lambda _: None)


async def test_a_compressed_answer_is_refused_unopened(server: StandIn, openai: Make):
    bomb = gzip.compress(b"\0" * 1_000_000)
    server.acts = [say(head(content_encoding="gzip"), bomb)]
    with pytest.raises(ModelReplyError, match="compressed"):
        await openai().complete(ASK)
    assert server.seen[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("body", [b"", b"no", b"[]", b"[" * 100_000, b"\xff\xfe", b"1" * 10_000])
async def test_an_answer_that_is_no_json_object_is_an_error(server: StandIn, openai: Make, body):
    server.acts = [say(head(), body)]
    with pytest.raises(ModelReplyError, match="not a JSON object"):
        await openai().complete(ASK)


async def test_a_long_error_is_cut(server: StandIn, openai: Make):
    server.acts = [say(head(400), b"x" * 10_000_000)]
    with pytest.raises(ModelRefusedError, match="status 400"):
        await openai(max_bytes=1000).complete(ASK)


async def test_a_proxy_is_not_asked_for_this_machine(server: StandIn, openai: Make, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    server.acts = [answer(chat("Hi"))]
    assert (await openai().complete(ASK)).text == "Hi"


async def test_a_proxy_is_asked_for_other_machines(server: StandIn, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", server.url)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    server.acts = [answer(chat("Hi"))]
    model = HttpModel(
        "openai/x", dialect=OpenAI(), address=Address.parse("http://model.invalid/v1")
    )
    assert (await model.complete(ASK)).text == "Hi"
    assert server.seen[0].path == "http://model.invalid/v1/chat/completions"
    await model.close()


async def test_many_calls_at_once_each_get_their_own_answer(server: StandIn, openai: Make):
    async def echo(_reader, writer):
        writer.write(
            head() + json.dumps(chat(server.seen[-1].body["messages"][0]["content"])).encode()
        )

    server.acts = [echo]
    model = openai()
    asked = [str(number) for number in range(30)]
    replies = await asyncio.gather(*(model.complete([Message("user", one)]) for one in asked))
    assert [one.text for one in replies] == asked


async def test_a_closed_model_says_so(openai: Make):
    model = openai()
    await model.close()
    with pytest.raises(ModelRefusedError, match="has been closed"):
        await model.complete(ASK)


@pytest.mark.parametrize("limits", [{"timeout_seconds": 0}, {"max_bytes": -1}, {"max_retries": -1}])
def test_limits_that_cannot_be_are_refused(limits):
    with pytest.raises(ConfigError):
        Limits(**limits)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:80",
        "ftp://x",
        "http://",
        "http://u:p@x",
        "http://x?key=1",
        "http://[",
        "http://x:99999",
    ],
)
def test_an_address_that_cannot_be_is_refused_without_being_repeated(url):
    with pytest.raises(ConfigError) as caught:
        Address.parse(url)
    assert "u:p" not in str(caught.value)
    assert "key=1" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:1/v1/", True),
        ("http://127.9.9.9", True),
        ("http://[::1]:80", True),
        ("http://localhost", True),
        ("https://localhost.example.com", False),
        ("https://10.0.0.1", False),
    ],
)
def test_this_machine_is_told_from_others(url, local):
    assert Address.parse(url).local is local
