"""Two hundred hostile replies through the loop: each run ends, within its budget, and says how."""

from __future__ import annotations

import random

import pytest
from rlm_runs import TEXT, cell, cut

from atoll.agent.rlm.budget import Budget
from atoll.agent.rlm.core import RLM
from atoll.agent.rlm.models.scripted import ScriptedModel
from atoll.agent.rlm.models.types import Completion
from atoll.agent.rlm.replies import parse

FENCES = ["```", "```python", "~~~", "````py", "``", "``` python title=x", "<code>", "</code>"]
OTHERS = [
    "```javascript\nconsole.log(1)\n```",
    "```bash\nrm -rf /\n```",
    '```json\n{"FINAL": 1}\n```',
    '{"tool": "FINAL", "arguments": {"answer": "x"}}',
    '<tool_call>{"name": "FINAL"}</tool_call>',
    "Ответ: сорок два",
    "答えは四十二です",
    "\u202eLANIF\u202c('x')",
    "\x00\x01\x1b[2J",
    "\ud83d" + "half",
    "<think>FINAL('a thought')",
    "<think>so</think>",
    "```" + " " * 20_000 + "`",
]
BROKEN = [
    "FINAL(",
    "FINAL('",
    'FINAL("""',
    "FINAL(((((",
    "FINAL()",
    "FINAL_VAR()",
    "FINAL_VAR(__import__('os'))",
    "FINAL_VAR('nothing')",
    "FINAL(FINAL)",
    "answer = {'ready': True}",
]
CODE = [
    "FINAL('x', quotes=['not there'])",
    "FINAL(FINAL)",
    "raise SystemExit(7)",
    "import os; os._exit(9)",
    "def f(): f()\nf()",
    "x = 'a' * 10**7\nx",
    "print('z' * 10**6)",
    "x =",
    "    indented",
    "\tmixed\n  up",
    "while True pass",
    "answer = {'content': '', 'ready': True}",
    "answer = 5",
    "FINAL_VAR('x'",
    "SUBMIT()",
    "llm_query(5)",
    "rlm_query()",
    "grep('(')",
    "peek(-5, 'x')",
    "1 / 0",
]


def replies() -> list[str | Completion]:
    """Two hundred, the same in every run."""
    dice = random.Random(200)
    made: list[str | Completion] = [
        "",
        " ",
        "\n" * 50,
        cut(""),
        cut("half an answer"),
        *OTHERS,
        *BROKEN,
    ]
    made += [cell(code) for code in CODE]
    made += [cut(f"```python\n{code}") for code in CODE]
    made += [
        "'" * 20_000,
        'FINAL("' + '\\"' * 20_000,
        "FINAL(" + "(" * 20_000,
        "```\n" * 5_000,
        cell("x = " + "1" * 50_000),
        cell("x = " + "[" * 5_000),
        cell("x = '" + "y" * 200_000 + "'"),
    ]
    parts = [*FENCES, *OTHERS, *BROKEN, *CODE]
    while len(made) < 200:
        made.append(dice.choice(["\n", "", " "]).join(dice.choices(parts, k=dice.randint(1, 9))))
    return made


REPLIES = replies()


def test_there_are_two_hundred():
    assert len(REPLIES) == 200


LAST = "The last word."
GIVING = ("FINAL", "SUBMIT", "answer")
"""What a reply must have in it to give an answer by itself."""


@pytest.mark.parametrize("part", range(8))
async def test_hostile_replies_end_in_an_honest_answer_within_the_budget(part):
    """Each reply has a run of its own: that reply, then prose, then the last answer in prose.

    So a run is forced with the last answer, unless the reply itself gave one. The runs of a part
    share a sandbox, so that it costs little.
    """
    next_reply: list[str | Completion] = []
    model = ScriptedModel(
        [lambda _: next_reply.pop() if next_reply else LAST], forever=True, usd_per_call=0.01
    )
    limits = Budget(usd=0.03, calls=3, iterations=2, seconds=120)
    rlm = RLM(model, backend="native", direct_tokens=1, timeout_ms=5_000, budget=limits)
    async with rlm, rlm.session(TEXT) as session:
        for reply in REPLIES[part * 25 : part * 25 + 25]:
            next_reply[:] = [reply]
            answer = await session.ask("What is it?")
            assert answer.calls <= 3
            assert answer.cost <= 0.03
            check(answer, reply if isinstance(reply, str) else reply.text)


def check(answer, reply):
    """The reply gave an answer of its own, which is not code, or the last answer was asked for."""
    if answer.ended == "answered":
        assert any(word in reply for word in GIVING), reply[:200]
        assert answer.text.strip()
        assert not parse(answer.text).cells
    else:
        assert (answer.text, answer.ended) == (LAST, "forced"), reply[:200]
        assert answer.reason == "2 turns were made"
