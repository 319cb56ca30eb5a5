"""Two hundred hostile replies through the loop: each run ends, within its budget, and says how."""

from __future__ import annotations

import random

import pytest
from rlm_runs import TEXT, cell, cut

from atoll.rlm.budget import Budget
from atoll.rlm.core import RLM
from atoll.rlm.models.scripted import ScriptedModel
from atoll.rlm.models.types import Completion
from atoll.rlm.replies import parse

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


@pytest.mark.parametrize("part", range(8))
async def test_hostile_replies_end_in_an_honest_answer_within_the_budget(part):
    """Twenty-five replies, five to a run: one sandbox each, so that it costs little."""
    chosen = REPLIES[part * 25 : part * 25 + 25]
    for at in range(0, 25, 5):
        model = ScriptedModel(
            [*chosen[at : at + 5], "The last word."], forever=True, usd_per_call=0.01
        )
        limits = Budget(usd=0.06, calls=6, iterations=5, seconds=120)
        rlm = RLM(model, backend="native", direct_tokens=1, timeout_ms=5_000, budget=limits)
        answer = await rlm.completion("What is it?", TEXT)
        spent = answer.usage.input_tokens + answer.usage.output_tokens
        assert answer.calls <= 6
        assert answer.cost <= 0.06
        assert spent > 0
        check(answer)


def check(answer):
    """An answer has a text that is not code, or there is none and the reason is said."""
    if answer.ended == "unanswered":
        assert answer.text == ""
        assert answer.reason
        return
    assert answer.text.strip()
    if answer.ended in ("forced", "refused"):
        assert answer.reason
        assert not parse(answer.text).cells or answer.ended == "refused"
    assert not (answer.ended == "answered" and answer.text.startswith("```python"))
