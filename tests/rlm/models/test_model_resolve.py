"""From names to models: providers, addresses, keys, and what to type where one is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest
from model_standin import KEY, StandIn, answer, chat

from atoll.agent.rlm.models import client
from atoll.agent.rlm.models.prices import Price
from atoll.agent.rlm.models.resolve import resolve
from atoll.agent.rlm.models.scripted import ScriptedModel
from atoll.agent.rlm.models.types import Message
from atoll.errors import ConfigError

ASK = [Message("user", "Hello")]
USAGE = {"prompt_tokens": 1_000_000, "completion_tokens": 0}


@pytest.mark.parametrize(
    ("name", "variable"),
    [("openai/gpt-5", "OPENAI_API_KEY"), ("anthropic/claude-opus-4-1", "ANTHROPIC_API_KEY")],
)
def test_a_missing_key_is_told_by_its_variable(name, variable):
    with pytest.raises(ConfigError) as caught:
        resolve(name)
    assert str(caught.value) == f"{name} needs a key. Type: export {variable}=..."


@pytest.mark.parametrize("name", ["gpt-5", "openai/", "/gpt-5", "", "google/gemini"])
def test_a_name_without_a_known_provider_is_told_those_there_are(name):
    with pytest.raises(ConfigError, match=r"one of openai/\.\.\., anthropic/\.\.\., ollama/"):
        resolve(name)


@pytest.mark.parametrize("provider", ["local", "openai-compatible"])
def test_a_server_of_ones_own_must_be_given(provider):
    with pytest.raises(ConfigError, match="needs base_url, such as http://127"):
        resolve(f"{provider}/llama")


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("openai/gpt-5", "api.openai.com"),
        ("anthropic/claude-opus-4-1", "api.anthropic.com"),
        ("ollama/llama3:8b", "127.0.0.1"),
    ],
)
def test_a_provider_has_an_address(name, host, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    assert repr(resolve(name)) == f"<HttpModel {name} at {host}>"


@pytest.mark.parametrize(
    ("name", "base", "path"),
    [
        ("openai/gpt-5", "/v1", "/v1/chat/completions"),
        ("local/a/b:c", "/v1/", "/v1/chat/completions"),
        ("anthropic/claude", "", "/v1/messages"),
        ("anthropic/claude", "/v1", "/v1/messages"),
    ],
)
async def test_a_server_elsewhere_is_asked_without_a_key_where_there_is_none(
    server: StandIn, name, base, path
):
    server.acts = [
        answer(chat("Hi") | {"type": "message", "content": "Hi", "stop_reason": "end_turn"})
    ]
    model = resolve(name, base_url=server.url + base)
    assert (await model.complete(ASK)).text == "Hi"
    assert server.seen[0].path == path
    assert server.seen[0].body["model"] == name.partition("/")[2]
    await model.close()


async def test_the_environment_says_where_openai_is(server: StandIn, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", server.url + "/v1")
    monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")
    server.acts = [answer(chat("Hi"))]
    model = resolve("openai/gpt-5")
    await model.complete(ASK)
    assert server.seen[0].headers["authorization"] == f"Bearer {KEY}"
    await model.close()


@pytest.mark.parametrize("name", ["local/x", "openai-compatible/x", "ollama/x"])
async def test_the_key_of_openai_goes_to_nobody_else(server: StandIn, monkeypatch, name):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server.acts = [answer(chat("Hi"))]
    model = resolve(name, base_url=server.url + "/v1")
    await model.complete(ASK)
    assert KEY not in str(server.seen[0].headers)
    await model.close()


async def test_a_model_on_this_machine_costs_nothing_unless_a_table_says_so(server: StandIn):
    server.acts = [answer(chat("Hi", usage=USAGE))]
    for table, usd in ((None, 0), ({"local/x": Price(3, 3, 3)}, 3)):
        model = resolve("local/x", base_url=server.url, price_table=table)
        assert (await model.complete(ASK)).usd == usd
        await model.close()


def test_a_model_is_handed_back():
    model = ScriptedModel([])
    assert resolve(model) is model


def test_without_the_extra_it_says_what_to_type(monkeypatch):
    monkeypatch.setattr(client.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install .*httpx2"):
        resolve("ollama/x")


def test_nothing_is_loaded_before_a_model_is_asked():
    code = (
        "import sys, atoll; from atoll.agent.rlm.models import resolve, recorded, scripted;"
        "resolve.resolve('ollama/x'); print('httpx2' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
