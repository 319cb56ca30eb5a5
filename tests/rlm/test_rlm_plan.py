"""The planner: what is small is shown, what is large or has documents is explored; why is told."""

from __future__ import annotations

import pytest
from rlm_runs import TEXT, ask, cell, script, told

from atoll.agent.trajectory import events

SECRET = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"


async def test_a_small_context_is_shown_in_one_question():
    model = script("It is 49.")
    answer = await ask(model, "entry 7: value 49", direct_tokens=100)
    assert (answer.text, answer.way, answer.calls) == ("It is 49.", "direct", 1)
    assert "fit into one question (100)" in answer.why
    assert "entry 7: value 49" in model.asked[0].messages[-1].content
    planned, final = told(answer, events.Planned)[0], told(answer, events.FinalGiven)[0]
    assert (planned.way, planned.why, final.how) == ("direct", answer.why, "text")
    assert not told(answer, events.CodeRan)


async def test_a_question_without_a_context_is_just_asked():
    model = script("Hello.")
    answer = await ask(model, None)
    assert (answer.way, answer.why) == ("direct", "there is no context")
    assert model.asked[0].messages[-1].content == "What is it?"


@pytest.mark.parametrize(
    ("direct_tokens", "why"),
    [(500, "characters are more than 500 tokens"), (2_000, "tokens are more than 2,000")],
)
async def test_a_large_context_is_explored(direct_tokens, why):
    answer = await ask(script(cell("FINAL(1)")), TEXT, direct_tokens=direct_tokens)
    assert answer.way == told(answer, events.Planned)[0].way == "loop"
    assert why in answer.why


async def test_documents_are_explored_however_small_the_context(tmp_path):
    (tmp_path / "note.txt").write_text("the pump is blue")
    model = script(cell("FINAL(peek('note.txt', 16))"))
    answer = await ask(model, "short", documents=tmp_path, direct_tokens=4_000)
    assert answer.text == "the pump is blue"
    assert answer.why == "there are documents to look into"


@pytest.mark.parametrize("direct_tokens", [1, 4_000])
async def test_secrets_in_a_context_are_not_shown_on_either_way(direct_tokens):
    model = script(cell("print(context)", f"print({SECRET!r})"), cell("FINAL(1)"))
    await ask(model, f"the key is {SECRET}, keep it", direct_tokens=direct_tokens)
    sent = "".join(
        one.content for asked in model.asked for one in asked.messages if one.role == "user"
    )
    assert "the key is [redacted" in sent
    assert SECRET not in sent
