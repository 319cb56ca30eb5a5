"""A trajectory as one self-contained page for a browser: no scripts, no requests.

# SECURITY: the page's Content-Security-Policy forbids scripts and all loading; its style sheet is
# allowed by its hash. A text that got through unescaped could neither run nor send anything.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from atoll.agent.trajectory import words
from atoll.agent.trajectory.events import Explored, FinalGiven, RunEnded, RunStarted
from atoll.agent.trajectory.html import steps
from atoll.agent.trajectory.html.steps import Steps, Texts, graph, one
from atoll.text.amounts import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from atoll.agent.trajectory.reader import Trajectory
    from atoll.agent.trajectory.tree import Node

ANSWER_CAP = 20_000
QUESTION_CAP = 4_000


def page(trajectory: Trajectory) -> Iterator[str]:
    """Yield the page in parts."""
    runs, texts = trajectory.tree(), Texts()
    title = next((run.event.question for run in runs if isinstance(run.event, RunStarted)), "")
    yield from _head(title or "Trajectory")
    for run in runs:
        yield from _run(run, texts)
    notes = [
        "Nothing has happened in it yet." * (not runs),
        "The last line of the file is not whole." * trajectory.torn,
        f"{counted(trajectory.skipped, 'lines')} could not be read." * bool(trajectory.skipped),
        "There is more in the file than is shown." * trajectory.cut,
    ]
    yield from (f'<p class="note">{note}</p>\n' for note in notes if note)
    yield "</main>\n</body>\n</html>\n"


@cache
def style() -> str:
    """Return the page's style sheet."""
    return resources.files(__package__).joinpath("style.css").read_text("utf-8")


def _head(title: str) -> Iterator[str]:
    digest = base64.b64encode(hashlib.sha256(style().encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield '<meta name="referrer" content="no-referrer">\n'
    yield '<meta name="color-scheme" content="light dark">\n'
    yield f"<title>{one(title, 80)}</title>\n<style>{style()}</style>\n</head>\n<body>\n<main>\n"


def _run(node: Node, texts: Texts) -> Iterator[str]:
    event = node.event
    question = event.question if isinstance(event, RunStarted) else ""
    heading = texts.many(question, QUESTION_CAP) or "A run whose beginning is not here"
    yield f'<header>\n<p class="kind">Question</p>\n<h1>{heading}</h1>\n{_state(node)}</header>\n'
    yield from _answer(node, texts)
    for child in node.children:
        if isinstance(child.event, Explored):
            yield from graph(child.event)
    yield from _facts(node)
    yield "<section>\n<h2>What happened</h2>\n"
    yield from Steps(texts, node).all()
    yield "</section>\n"


def _state(node: Node) -> str:
    end, totals = node.end, node.totals
    outcome = end.outcome if isinstance(end, RunEnded) else "under way, or cut off"
    mood = {"answered": "good", "forced": "warn", "refused": "warn"}.get(outcome, "bad")
    facts = [
        f'<b class="chip {mood}">{one(outcome, 40)}</b>',
        *(
            f"<span>{one(text)}</span>"
            for text in (
                words.cost(totals),
                words.duration(node.end_ms - node.start_ms),
                counted(totals.calls, "model calls"),
                words.tokens(totals.usage),
            )
        ),
    ]
    return f'<p class="state">{" ".join(facts)}</p>\n'


def _answer(node: Node, texts: Texts) -> Iterator[str]:
    finals = [child.event for child in node.children if isinstance(child.event, FinalGiven)]
    error = node.end.error if isinstance(node.end, RunEnded) else None
    yield "<section>\n<h2>Answer</h2>\n"
    if error:
        yield f'<pre class="bad">{texts.many(error, ANSWER_CAP)}</pre>\n'
    if not finals:
        yield '<p class="note">None was given.</p>\n</section>\n'
        return
    final = finals[-1]
    if final.ended != "answered":
        yield f'<p class="note">{one(words.ending(final))}</p>\n'
    yield f'<pre class="answer">{texts.many(final.text, ANSWER_CAP)}</pre>\n'
    yield from evidence(final)
    if final.coverage:
        yield f"<h3>Seen of the context</h3>\n{steps.coverage(final.coverage)}"
    yield "</section>\n"


def evidence(final: FinalGiven) -> Iterator[str]:
    """Yield the quotes of an answer."""
    if not final.evidence:
        return
    yield '<h3>Evidence</h3>\n<ul class="evidence">\n'
    for proof in final.evidence:
        mood, word = ("good", "found") if words.found(proof) else ("bad", "not found")
        quote = one(str(proof.get("quote", "")), 1000)
        where = f'<span class="cost">{one(words.place(proof), 600)}</span>'
        yield f'<li><b class="chip {mood}">{word}</b> <q>{quote}</q> {where}</li>\n'
    yield "</ul>\n"


def _facts(node: Node) -> Iterator[str]:
    event = node.event
    yield "<section>\n<details>\n<summary><h2>The run</h2></summary>\n<dl>\n"
    rows: dict[str, str | Mapping[str, Any]] = {"run": event.run, "begun": event.at}
    if isinstance(event, RunStarted):
        rows |= {"model": event.model, "model of sub-calls": event.sub_model}
        rows |= {"context": event.context, "budget": event.budget, "atoll": event.atoll_version}
        rows |= {"also": event.extra}
    for name, value in rows.items():
        text = value if isinstance(value, str) else words.pairs(value)
        if text:
            yield f"<dt>{name}</dt><dd>{one(text, 600)}</dd>\n"
    yield "</dl>\n</details>\n</section>\n"
