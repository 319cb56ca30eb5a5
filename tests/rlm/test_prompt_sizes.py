"""The prompts of the code loop are short, and what was sent before is sent again byte for byte."""

from __future__ import annotations

import itertools

import pytest
from rlm_runs import cell, script

from atoll.agent.rlm.core import RLM
from atoll.text.tokens import estimate

LINE = "2031-05-02 station S12: pressure normal, flow normal\n"
TEXT = LINE * 2_000 + "2031-04-17 station Ekofisk: valve V-1182 was replaced\n" + LINE * 2_000
CODES = (
    "print(grep('Ekofisk'))",
    "print(grep('V-1182').total)",
    "print(peek(80))",
    "print(context_len)",
    "FINAL('V-1182')",
)


@pytest.mark.parametrize(
    ("profile", "most", "least"),
    [("small", 2_000, 0.8), ("medium", 2_800, 0.85), ("large", 2_800, 0.85)],
)
async def test_prompts_are_short_and_begin_with_the_one_before(profile, most, least):
    model = script(*map(cell, CODES))
    async with RLM(model, backend="native", profile=profile, strategy="explore") as rlm:
        answer = await rlm.completion("Which valve was replaced at Ekofisk?", TEXT)
    assert answer.text == "V-1182"
    sent = ["\0".join(message.content for message in one.messages) for one in model.asked]
    assert max(map(estimate, sent)) <= most
    repeated = total = 0
    for before, after in itertools.pairwise(sent):
        same = next(
            (n for n, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]),
            len(before),
        )
        repeated, total = repeated + same, total + len(after)
    share = repeated / total
    print(f"{profile}: {max(map(estimate, sent)):,} tokens, {share:.0%} sent before")
    assert share >= least
