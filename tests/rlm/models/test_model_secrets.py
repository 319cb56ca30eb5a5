"""Neither a key nor a prompt gets into an error, a log, or the looks of a model."""

from __future__ import annotations

import json
import logging
import traceback

import pytest
from model_standin import KEY, Make, StandIn, answer, chat, event, fails, head, piece, say, stream

from atoll.agent.rlm.models.client import Address, HttpModel
from atoll.agent.rlm.models.dialects import Anthropic, OpenAI
from atoll.agent.rlm.models.recorded import Recorder
from atoll.agent.rlm.models.types import Message
from atoll.errors import ConfigError, ModelError, ModelRefusedError

PROMPT = "the-prompt-nobody-else-may-read"
ASK = [Message("user", PROMPT)]
ECHO = f"you sent {KEY} and {PROMPT}"
ERROR = {"error": {"type": PROMPT, "code": KEY, "message": ECHO, "param": KEY}}

BAD = {
    "refused": answer(ERROR, 400),
    "unauthorized": answer(ERROR, 401),
    "busy": answer(ERROR, 503, retry_after=KEY),
    "plain": say(head(500, "text/plain"), ECHO.encode()),
    "in an answer": answer(ERROR),
    "in a stream": stream(ERROR),
    "after text": stream(piece("Hi"), ERROR),
    "no JSON": say(head(), ECHO.encode()),
    "no event": say(head(kind="text/event-stream"), b"data: " + ECHO.encode() + b"\n\n"),
    "no HTTP": say(ECHO.encode() + b"\r\n\r\n"),
    "bad header": say(f"HTTP/1.1 200 OK\r\n{KEY} {PROMPT}\r\n\r\n".encode()),
    "redirect": answer({}, 302, location=f"http://127.0.0.1:9/{KEY}"),
    "cut": say(head(content_length="9999"), ECHO.encode()),
}


@pytest.mark.parametrize("case", BAD)
async def test_no_key_and_no_prompt_in_errors_and_logs(server: StandIn, openai: Make, caplog, case):
    caplog.set_level(logging.INFO)  # below that, the HTTP library shows headers that a server sent
    caplog.set_level(logging.DEBUG, "atoll")
    server.acts = [BAD[case]]
    with pytest.raises(ModelError) as caught:
        await openai(max_retries=1).complete(ASK, on_text=lambda _: None)
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    shown += repr(vars(caught.value)) + caplog.text
    assert KEY not in shown
    assert PROMPT not in shown


async def test_the_server_s_words_are_shown_without_key_and_prompt(server: StandIn, openai: Make):
    server.acts = [answer({"error": {"message": f"{ECHO}, which is too much"}}, 400)]
    with pytest.raises(ModelRefusedError) as caught:
        await openai().complete(ASK)
    said = "“you sent [redacted: OPENAI_API_KEY] and [prompt], which is too much”"
    assert str(caught.value).endswith(f"status 400: {said}")


@pytest.mark.parametrize("before", range(220, 320, 7))
async def test_no_part_of_a_key_is_left_where_the_words_are_cut(
    server: StandIn, openai: Make, before
):
    server.acts = [answer({"error": {"message": f"{'é' * before} {KEY} {PROMPT}"}}, 400)]
    with pytest.raises(ModelRefusedError) as caught:
        await openai().complete(ASK)
    assert KEY[:8] not in str(caught.value)
    assert PROMPT[:8] not in str(caught.value)


@pytest.mark.parametrize("streamed", [True, False])
async def test_no_key_and_no_prompt_in_the_logs_of_a_good_call(
    server: StandIn, openai: Make, caplog, streamed
):
    caplog.set_level(logging.DEBUG)
    server.acts = [answer(chat("Hi"))]
    await openai().complete(ASK, on_text=(lambda _: None) if streamed else None)
    assert "chat/completions" in caplog.text
    assert KEY not in caplog.text
    assert PROMPT not in caplog.text


async def test_no_error_carries_another_with_the_request_in_it(server: StandIn, openai: Make):
    model = openai(max_retries=0)
    await server.stop()
    with pytest.raises(ModelError) as caught:
        await model.complete(ASK)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


async def test_a_dropped_option_is_logged_by_its_name_alone(server: StandIn, openai: Make, caplog):
    server.acts = [fails(400, "", f"temperature is not supported, {ECHO}"), answer(chat("Hi"))]
    await openai().complete(ASK, temperature=0.0)
    rows = [json.loads(one.message) for one in caplog.records if one.name == "atoll"]
    assert rows == [
        {"event": "model_option_dropped", "model": "openai/gpt-5", "option": "temperature"}
    ]


@pytest.mark.parametrize(
    ("dialect", "variable"), [(OpenAI(), "OPENAI_API_KEY"), (Anthropic(), "ANTHROPIC_API_KEY")]
)
@pytest.mark.parametrize(
    ("key", "what"),
    [(KEY, "The server refused the key in {}"), (None, "The server wants a key: export {}=")],
)
async def test_a_refused_key_is_named_by_its_variable(
    server: StandIn, dialect, variable, key, what
):
    server.acts = [fails(401, "authentication_error")]
    model = HttpModel("some/model", dialect=dialect, address=Address.parse(server.url), key=key)
    with pytest.raises(ModelRefusedError, match=what.format(variable)):
        await model.complete(ASK)
    await model.close()


@pytest.mark.parametrize("key", ["secret\nX-Other: 1", "secr\u00e9t", "sec ret", "secret\x00"])
def test_a_key_that_no_header_can_hold_is_refused_without_being_shown(key):
    with pytest.raises(ConfigError) as caught:
        HttpModel("a/b", dialect=OpenAI(), address=Address.parse("http://localhost"), key=key)
    assert str(caught.value) == "OPENAI_API_KEY has characters that no key has"


async def test_a_model_does_not_show_its_key(openai: Make):
    assert repr(openai()) == "<HttpModel openai/gpt-5 at 127.0.0.1>"


async def test_no_key_in_a_record(server: StandIn, openai: Make, tmp_path):
    server.acts = [
        answer(chat("Hi")),
        answer(ERROR, 401),
        say(head(kind="text/event-stream"), event(ERROR)),
    ]
    model = Recorder(openai(max_retries=0), tmp_path / "record")
    await model.complete(ASK)
    for on_text in (None, lambda _: None):
        with pytest.raises(ModelError):
            await model.complete(ASK, on_text=on_text)
    await model.close()
    kept = (tmp_path / "record").read_text()
    assert len(kept.splitlines()) == 3
    assert KEY not in kept
