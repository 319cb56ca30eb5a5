"""What reaches the model is the same however large the context is."""

from __future__ import annotations

import pytest
from rlm_runs import ask, cell, script

LINE = "2031-05-02 station S12: pressure normal, flow normal\n"
NEEDLE = "2031-04-17 station Ekofisk: valve V-1182 was replaced\n"


def grown(size):
    half = LINE * (size // len(LINE) // 2)
    return half + NEEDLE + half


async def used(size):
    model = script(
        cell("print(peek(200))"),
        cell("hits = grep('Ekofisk')\nprint(hits)"),
        cell("FINAL('V-1182', quotes=['valve V-1182 was replaced'])"),
    )
    answer = await ask(model, grown(size))
    assert (answer.text, answer.evidence[0].found) == ("V-1182", True)
    return answer.usage.input_tokens + answer.usage.output_tokens


async def test_tokens_do_not_grow_with_the_context():
    small, large = await used(10**4), await used(10**7)
    print(f"{small} tokens over 10 kB, {large} over 10 MB")
    assert large == pytest.approx(small, rel=0.02)
