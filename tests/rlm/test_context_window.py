"""Settings for models with few tokens, and which model is asked where."""

from __future__ import annotations

import pytest

import atoll
from atoll.agent.rlm import prompts
from atoll.agent.rlm.models.recorded import Recorder, Replay
from atoll.agent.rlm.models.resolve import resolve, resolve_both
from atoll.agent.rlm.models.scripted import ScriptedModel
from atoll.agent.rlm.models.types import Message
from atoll.agent.rlm.options import LEAST_WINDOW, fitting
from atoll.agent.trajectory import CodeRan
from atoll.text.tokens import estimate

HERE = "http://127.0.0.1:9/v1"


@pytest.mark.parametrize("window", [4_096, 8_192, 32_768])
def test_every_request_of_a_run_fits_into_the_window(window):
    code = "```python\nprint(peek(100_000))\n# {}\n```"
    replies = [code.format("x" * turn) for turn in range(8)]
    model = ScriptedModel([*replies, "```python\nFINAL('x')\n```"])
    with atoll.RLM(model, window=window, backend="native") as rlm:
        rlm.completion("?", "word 123, " * 100_000)
    assert len(model.asked) == 9
    for asked in model.asked:
        prompt = sum(estimate(one.content) for one in asked.messages)
        assert prompt + (asked.options.max_tokens or window) <= window


def test_the_example_comes_first_and_is_never_cut():
    model = ScriptedModel(
        ["```python\nprint(peek(3_000))\n```"] * 6 + ["```python\nFINAL('x')\n```"]
    )
    with atoll.RLM(model, history_tokens=100, backend="native") as rlm:
        answer = rlm.completion("What?", "word " * 50_000)
    last = model.asked[-1].messages
    assert [one.content for one in last[1:7]] == list(prompts.EXAMPLE)
    assert last[7].content.startswith("Question: What?")
    assert sum(len(one.content) for one in last[8:]) < 3 * 3_300  # two turns, and little of others
    turns = [one for one in answer.trajectory if isinstance(one, CodeRan)]
    assert [one.outcome for one in turns] == ["ok"] * 7  # FINAL ends its cell, and is no fault


def test_a_window_that_is_not_named_changes_nothing_and_one_too_small_is_refused():
    assert fitting(1_000_000)["max_tokens"] == 4_096
    with pytest.raises(atoll.ConfigError, match=f"{LEAST_WINDOW:,} tokens, not 2,047"):
        fitting(2_047)


def test_what_is_given_beside_a_window_counts():
    model = ScriptedModel(["x"])
    with atoll.RLM(model, window=4_096, max_tokens=77, temperature=0.5) as rlm:
        rlm.completion("?")
    assert (model.asked[0].options.max_tokens, model.asked[0].options.temperature) == (77, 0.5)


def test_sub_calls_have_the_temperature_of_the_run():
    model = ScriptedModel(["```python\nFINAL(llm_query('x'))\n```", "y"])
    with atoll.RLM(model, temperature=0.0, backend="native") as rlm:
        assert rlm.completion("?", "word " * 50_000).text == "y"
    assert [asked.options.temperature for asked in model.asked] == [0.0, 0.0]


async def test_a_record_is_a_model_by_name(tmp_path):
    path, asked = tmp_path / "record.jsonl", [Message("user", "hello")]
    recorder = Recorder(ScriptedModel(["hi"]), path)
    await recorder.complete(asked)
    await recorder.close()
    model = resolve(f"replay/{path}")
    assert isinstance(model, Replay)
    assert (await model.complete(asked)).text == "hi"


def test_one_name_is_one_model():
    for sub in (None, "local/x"):
        models = resolve_both("local/x", sub, HERE)
        assert models.main is models.sub


def test_an_address_is_for_models_of_the_same_provider_alone(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    for sub, host in (("local/y", "127.0.0.1>"), ("openai/gpt-5", "api.openai.com>")):
        models = resolve_both("local/x", sub, HERE)
        hosts = [repr(one).rpartition(" at ")[2] for one in (models.main, models.sub)]
        assert hosts == ["127.0.0.1>", host]
