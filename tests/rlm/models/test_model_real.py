"""A real language model on this machine, asked by each dialect, whole and streamed."""

from __future__ import annotations

import pytest

from atoll.agent.rlm.models.resolve import resolve
from atoll.agent.rlm.models.types import Message

pytestmark = pytest.mark.llm

ASK = [
    Message("system", "Answer with one word."),
    Message("user", "What is the capital of France?"),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", ["local/qwen", "anthropic/qwen"])
async def test_a_real_model_answers_a_short_question(address: str, name, streamed):
    model = resolve(name, base_url=f"{address}/v1")
    pieces: list[str] = []
    reply = await model.complete(
        ASK, max_tokens=16, temperature=0.0, on_text=pieces.append if streamed else None
    )
    await model.close()
    assert "Paris" in reply.text
    assert (reply.finish, reply.usd) == ("stop", 0)
    assert not reply.usage.estimated
    assert 0 < reply.usage.output_tokens <= 16 < reply.usage.input_tokens < 100
    assert "".join(pieces) == (reply.text if streamed else "")
