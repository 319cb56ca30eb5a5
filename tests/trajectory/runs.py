"""Trajectories for tests: a realistic run of depth 2, and one of hostile texts."""

from __future__ import annotations

import random
from typing import Any

from atoll.agent.trajectory import (
    BudgetWarned,
    CodeRan,
    Event,
    Explored,
    FinalGiven,
    ModelAnswered,
    ModelAsked,
    Planned,
    Refused,
    RunEnded,
    RunStarted,
    SubcallEnded,
    SubcallStarted,
    TrajectoryWriter,
    Usage,
)

QUESTION = "Which clause of the lease lets the tenant leave early, and at what price?"
PEEK = """\
# What kind of text is this, and how is it divided?
head = peek(2000)
sections = [m for m in grep(r"^Article \\d+", max_results=200)]
print(len(context), len(sections))
for match in sections[:12]:
    print(match.line, match.text)
"""
BATCH = """\
parts = [context[s:e] for s, e in split(sections, 32)]
prompts = [f"Does this part speak of ending the lease early? Quote it.\\n\\n{p}" for p in parts]
answers = llm_query_batched(prompts)  # all at once
hits = {i: a for i, a in enumerate(answers) if not a.startswith("No")}
print(f"{len(hits)} of {len(parts)} parts do")
hits
"""
DEEPER = """\
found = rlm_query("What does leaving early cost the tenant?", ctx=parts[17] + parts[18])
print(found)
"""


class Story:
    """Emits events on a clock of its own, so that a run of minutes is told in no time."""

    def __init__(self, writer: TrajectoryWriter) -> None:
        self.writer, self.now = writer, 1.0
        self._chance = random.Random(7)

    def tell(self, event: type[Event], after: float = 5.0, **values: Any) -> None:
        self.now += after
        self.writer.emit(event(elapsed_ms=round(self.now, 1), **values))

    def think(self, text: str, ms: float, parent: str | None = None, depth: int = 0) -> None:
        call, where = self.writer.new_call(), {"parent": parent, "depth": depth}
        read = self._chance.randint(1500, 6000)
        self.tell(
            ModelAsked, call=call, model="coder-1", messages_count=4, input_tokens=read, **where
        )
        usage = Usage(input=read, output=len(text) // 3, cached=read // 2)
        cost = round(read * 3e-6 + len(text) * 5e-6, 6)
        self.tell(
            ModelAnswered, ms, call=call, text=text, usage=usage, usd=cost, duration_ms=ms, **where
        )

    def batch(self, prompts: list[str], at_once: int = 8) -> None:
        """Sub-calls that run side by side: each starts when one of `at_once` places is free."""
        free, happened = [self.now] * at_once, []
        for number, prompt in enumerate(prompts):
            place = free.index(min(free))
            start, ms = free[place] + 3, self._chance.uniform(300, 1900)
            free[place] = start + ms
            call = self.writer.new_call()
            happened.append(
                (start, SubcallStarted, {"call": call, "kind": "llm_query", "prompt": prompt})
            )
            happened.append((start + ms, SubcallEnded, {"call": call, **self._answer(number)}))
        for at, event, values in sorted(happened, key=lambda one: one[0]):
            self.now = at
            self.tell(event, 0, depth=1, **values)

    def _answer(self, number: int) -> dict[str, Any]:
        usage = Usage(input=self._chance.randint(7000, 9000), output=self._chance.randint(8, 90))
        if number == 11:
            return {"error": "the model took longer than 30 s", "usage": Usage(), "usd": 0.0}
        text = "No." if number not in {17, 18} else "Yes: 'The Tenant may determine this Lease...'"
        return {"answer": text, "usage": usage, "usd": round(usage.input * 1.5e-7, 6)}


def realistic(writer: TrajectoryWriter) -> None:
    """Depth 2, 32 sub-calls in a batch, a warning, a refusal, a forced end."""
    story = Story(writer)
    story.tell(
        RunStarted,
        question=QUESTION,
        model="coder-1",
        sub_model="coder-mini",
        context={"kind": "str", "length": 12_400_000, "name": "leases.txt"},
        budget={"usd": 0.25, "tokens": 400_000, "seconds": 120, "depth": 2},
        atoll_version="0.1.0",
    )
    story.tell(Planned, way="loop", why="12,400,000 characters are more than one question holds")
    story.think(f"First I look at how the text is divided.\n\n```repl\n{PEEK}```", 2100)
    listing = "\n".join(f"{n * 812 + 3} Article {n + 1} {'Rent' * (n % 3)}" for n in range(60))
    story.tell(
        CodeRan, 84, turn=1, code=PEEK, observation=f"12400000 60\n{listing}", outcome="ok",
        duration_ms=81, isolation="jailed", spilled="/tmp/repl_output/7f3a/turn_1.txt",
    )  # fmt: skip
    story.think(f"I ask a smaller model about every part.\n\n```repl\n{BATCH}```", 3300)
    began = story.now
    story.batch(
        [
            f"Does this part speak of ending the lease early? Quote it.\n\nArticle {n}: ..."
            for n in range(32)
        ]
    )
    story.tell(
        CodeRan, 12, turn=2, code=BATCH, observation="2 of 32 parts do\n{17: \"Yes: 'The Tenant may...\"}",
        duration_ms=story.now - began, isolation="jailed",
    )  # fmt: skip
    story.tell(BudgetWarned, what="usd", used=0.2, limit=0.25, share=0.8)
    story.think(f"Parts 17 and 18 have to be read closely.\n\n```repl\n{DEEPER}```", 2800)
    _deeper(story)
    story.think("```repl\nrlm_query('Is that usual?', ctx=context)\n```", 900)
    story.tell(
        Refused, what="rlm_query", why="the budget of $0.25 is used up: answer with what you have"
    )
    story.tell(
        CodeRan, 9, turn=4, code="rlm_query('Is that usual?', ctx=context)", outcome="error",
        observation="BudgetError: the budget of $0.25 is used up: answer with what you have",
        duration_ms=7, isolation="jailed", repeated=True,
    )  # fmt: skip
    _end(story)


def _deeper(story: Story) -> None:
    began, call = story.now, story.writer.new_call()
    inside = {"parent": call, "depth": 1}
    story.tell(
        SubcallStarted, call=call, kind="rlm_query", prompt="What does leaving early cost the tenant?",
        context={"kind": "str", "length": 775_000},
    )  # fmt: skip
    story.tell(Planned, way="loop", why="775,000 characters", **inside)
    story.think("```repl\nprint(grep('determine|break clause'))\n```", 1500, **inside)
    same = story.writer.new_call()
    story.tell(
        SubcallStarted,
        call="x1",
        kind="llm_query",
        prompt="Sum up: clause 17.2",
        parent=call,
        depth=2,
    )
    story.tell(
        SubcallStarted, call=same, kind="llm_query", prompt="Sum up: clause 17.2",
        shared_with="x1", parent=call, depth=2,
    )  # fmt: skip
    for one in ("x1", same):
        story.tell(
            SubcallEnded, 400, call=one, answer="A penalty of two months' rent.",
            usage=Usage(input=900, output=12), usd=0.0002, parent=call, depth=2,
        )  # fmt: skip
    story.tell(
        CodeRan, 8, turn=1, code="print(grep('determine|break clause'))", duration_ms=830,
        observation="17.2 The Tenant may determine this Lease", isolation="jailed", **inside,
    )  # fmt: skip
    story.tell(FinalGiven, how="FINAL", text="Two months' rent (clause 17.2).", **inside)
    story.tell(
        SubcallEnded, call=call, answer="Two months' rent (clause 17.2).",
        usage=Usage(input=7000, output=120, cached=2000), usd=0.031,
    )  # fmt: skip
    story.tell(
        CodeRan, 4, turn=3, code=DEEPER, observation="Two months' rent (clause 17.2).",
        duration_ms=story.now - began, isolation="jailed",
    )  # fmt: skip


def _end(story: Story) -> None:
    quote = "The Tenant may determine this Lease on the third anniversary"
    story.tell(
        Explored, strategy="delegated", calls={"peek": 1, "grep": 1},
        exploration_tokens=21_000, result_tokens=31, token_efficiency=31 / 21_000,
        nodes=(
            {"id": "P1", "call": "peek(n=2000)", "found": "LEASE", "parent": None,
             "references": [], "similar": [], "status": "pending"},
            {"id": "G1", "call": "grep(pattern='^Article')", "found": "Article 1", "parent": "P1",
             "references": ["P1"], "similar": [], "status": "analyzed"},
        ),
    )  # fmt: skip
    story.tell(
        FinalGiven,
        how="text",
        text="Clause 17.2: on the third anniversary, with six months' notice, for two months' rent.",
        evidence=(
            {"quote": quote, "found": True, "start": 6_702_114, "end": 6_702_174, "line": 14_031},
            {"quote": "a penalty of three months", "found": False, "start": None, "end": None, "line": None},
        ),
        coverage={
            "length": 12_400_000, "scanned_share": 0.76, "shown_share": 0.066,
            "map": "##" + "-" * 50 + "####" + "-" * 20 + "." * 24,
        },
        ended="forced", reason="the budget is spent",
    )  # fmt: skip
    story.tell(
        RunEnded, outcome="forced", usd=0.2513, usage=Usage(input=281_000, output=2_300, cached=8_000),
        calls=38, seconds=round(story.now / 1000, 1),
    )  # fmt: skip


HOSTILE = (
    "</script><script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>' onload='alert(1)",
    '<a href="javascript:alert(1)">x</a> javascript:alert(1)',
    "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m\x9b2J\rover\x08\x00\x7f",
    "\u202egnp.exe\u2066\u2069\u200b\ufeff\u2028line \ud800 end",
    "</style></pre></details><!-- ]]> &lt;b&gt;",
)


def hostile(writer: TrajectoryWriter) -> None:
    """Every text of every event is out to break whoever shows it."""
    bad = "\n".join(HOSTILE)
    data = {
        bad: bad,
        "length": bad,
        "map": HOSTILE,
        "name": [bad, {bad: bad}],
        "scanned_share": bad,
    }
    lies = {"quote": bad, "found": bad, "start": bad, "end": bad, "line": bad, bad: bad}
    proof = (lies, {**lies, "path": bad, "line": 1}, {})
    tell = writer.emit
    tell(
        RunStarted(
            question=bad, model=bad, sub_model=bad, context=data, budget=data, atoll_version=bad
        )
    )
    tell(Planned(way=bad, why=bad))
    tell(ModelAsked(call=bad, model=bad))
    tell(ModelAnswered(call=bad, text=f"{bad}\n```{bad}\n{bad}```{bad}"))
    tell(SubcallStarted(call="c1", kind=bad, prompt=bad, context=data, shared_with=bad))
    tell(SubcallEnded(call="c1", answer=bad, error=bad))
    tell(
        CodeRan(
            turn=1, code=bad, observation=bad, outcome=bad, isolation=bad, spilled=bad, extra=data
        )
    )
    tell(BudgetWarned(what=bad, used=1, limit=2, share=0.5))
    tell(Refused(what=bad, why=bad))
    evil = {"id": bad, "call": bad, "found": bad, "parent": bad, "references": [bad]}
    tell(Explored(strategy=bad, calls={bad: bad}, nodes=(evil, {**evil, "id": "G1"})))
    tell(FinalGiven(how=bad, text=bad, evidence=proof, coverage=data))
    tell(RunEnded(outcome=bad, error=bad))
