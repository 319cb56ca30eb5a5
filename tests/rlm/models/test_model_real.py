"""A real language model on this machine, asked by each dialect, whole and streamed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.rlm.models.resolve import resolve
from atoll.rlm.models.types import Message

pytestmark = pytest.mark.llm

SERVER = Path(__file__).parents[3] / "tools" / "llm_server.py"
ASK = [
    Message("system", "Answer with one word."),
    Message("user", "What is the capital of France?"),
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The server, which ends with the tests."""
    with subprocess.Popen(
        [sys.executable, str(SERVER)], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()
            server.wait(30)
    assert server.returncode == 0


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
