"""Rows about the recursive loop: tokens as a context grows, and a batch of sub-calls beside one.

The models are scripts: what they type is what a good one would type. Tokens are those of every
request, each with its whole history, as `atoll.text.tokens` counts them.

`python -m bench.rlm` prints the tokens for each size of the context up to 1 GB.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from atoll.agent.rlm.blocking import RLM
from atoll.agent.rlm.models.scripted import ScriptedModel
from atoll.sandbox.context import Context
from bench.rows import Arms, Goal, row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.rows import Scale

SMALL = 10**5
SIZES = (SMALL, 10**6, 10**7, 10**8, 10**9)
LINE = "2031-05-02 station S12: pressure normal, flow normal, level of the tank as it was\n"
NEEDLE = "2031-04-17 station Ekofisk: after the incident valve V-1182 was replaced\n"
SCRIPT = (
    "print(peek(300))",
    "hits = grep('Ekofisk.*valve')\nprint(hits)",
    "print(llm_query('Which valve was replaced? ' + str(hits)))",
    "FINAL('V-1182', quotes=['valve V-1182 was replaced'])",
)
BATCH, DELAY = 32, 0.1
TIMED = """
import time
llm_query("warm up")
begun = time.monotonic()
prompts = [str(n) for n in range({count})]
assert batch_llm_query(prompts) == prompts
FINAL(time.monotonic() - begun)"""


@row(
    what="rlm: tokens for a question over {size}",
    against="the same over 100 kB",
    rounds=1,
    unit="tokens",
    goal=Goal(ratio=1.05),
)
def rlm_tokens(scale: Scale) -> Iterator[Arms]:
    large, small = _context(scale.context_bytes), _context(SMALL)
    yield Arms(ours=lambda: _tokens(large), theirs=lambda: _tokens(small))


@row(
    what=f"rlm: {BATCH} sub-calls of {DELAY * 1000:.0f} ms in one batch",
    against="one such call",
    rounds=10,
    goal=Goal(ratio=1.5),
)
def rlm_batch(_scale: Scale) -> Iterator[Arms]:
    yield Arms(ours=lambda: _batch(BATCH), theirs=lambda: _batch(1))


def _batch(count: int) -> float:
    """Return the seconds of a batch by the guest's clock, without the start of the run."""
    main = ScriptedModel([f"```python\n{TIMED.format(count=count)}\n```"])
    sub = ScriptedModel([lambda messages: messages[-1].content], delay=DELAY, forever=True)
    rlm = RLM(main, sub_model=sub, backend="native", direct_tokens=1, concurrency=BATCH)
    return float(rlm.completion("How long?", LINE).value)


def _tokens(context: Context) -> float:
    """Return the tokens to and from models until the right answer."""
    main = ScriptedModel([f"```python\n{code}\n```" for code in SCRIPT])
    sub = ScriptedModel(["V-1182"])
    answer = RLM(main, sub_model=sub, backend="native").completion(
        "Which valve was replaced after the incident?", context
    )
    assert answer.text == "V-1182"
    assert answer.evidence[0].found
    return float(answer.usage.input_tokens + answer.usage.output_tokens)


def _context(size: int) -> Context:
    """Return a log of this size with the one relevant line at two thirds of it."""
    lines = size // len(LINE)
    return Context.from_text(LINE * (lines * 2 // 3) + NEEDLE + LINE * (lines // 3))


def table() -> str:
    """Return the tokens by the size of the context."""
    lines = ["context        tokens  ratio"]
    first = None
    for size in SIZES:
        tokens = _tokens(_context(size))
        first = first or tokens
        lines.append(f"{size / 10**6:>10,.1f} MB  {tokens:>6,.0f}  {tokens / first:>5.3f}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(print(table()))
