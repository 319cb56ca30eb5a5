"""The conversation stays within its size; the question and what happened last stay whole."""

from __future__ import annotations

from rlm_runs import ask, cell, script

from atoll.agent.rlm.budget import Budget
from atoll.agent.rlm.loop import History
from atoll.text.tokens import estimate


def size(history):
    return sum(estimate(one.content) for one in history.messages)


def test_old_messages_are_cut_and_the_last_stay():
    history = History("system", "question", 2_000)
    for n in range(12):
        history.add(f"reply {n}", f"seen {n} " + "word " * 400)
        assert size(history) <= 2_000
    shown = [one.content for one in history.messages]
    assert shown[:2] == ["system", "question"]
    assert shown[-1].endswith("word ")
    assert shown[3].endswith("[cut: it was long ago]")
    assert "reply 0" in shown, "what is short stays"


def test_many_short_turns_are_left_out_whole():
    history = History("system", "question", 500)
    for n in range(120):
        history.add(f"reply {n}", f"observation {n}")
        assert size(history) <= 500
    assert history.messages[1].content.startswith("question\n\n[")
    assert "earlier turns are left out]" in history.messages[1].content
    assert history.messages[-1].content == "observation 119"
    roles = [one.role for one in history.messages[1:]]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]


def test_what_was_sent_stays_the_same_for_several_turns():
    """Providers reuse what they have read before: a history that changes each turn costs more."""
    history, changed, before = History("system", "question", 1_000), 0, ()
    for n in range(100):
        history.add(f"reply {n}", "word " * 20)
        changed += history.messages[: len(before)] != before
        before = history.messages
    assert 0 < changed < 35


def test_a_turn_that_repeats_the_one_before_adds_only_its_note():
    history = History("system", "question", 10_000)
    for note in ("(turn 1)", "(turn 2: again)"):
        history.add("reply", "seen", note)
    assert [one.content for one in history.messages[2:]] == [
        "reply",
        "seen\n(turn 1)\n(turn 2: again)",
    ]
    history.add("reply", "seen something else", "(turn 3)")
    assert len(history.messages) == 6, "code may give another output when it is run again"


def test_of_what_was_observed_the_newest_that_fits_is_told_once_and_no_reply():
    history = History("system", "question", 10_000)
    for seen in ("old " * 100, "first", "second", "first"):
        history.add("reply", seen, "(turn)")
    asked = history.observed("be short", "answer now", 60)
    assert [one.content for one in asked] == [
        "be short",
        "question\n\nsecond\n\nfirst\n\nanswer now",
    ]
    assert history.messages[-1].content == "first\n(turn)"


async def test_a_run_sends_no_more_than_its_history():
    model = script(*[cell(f"print('{n} ' * 2000)") for n in range(12)], "enough")
    await ask(model, history_tokens=6_400, budget=Budget(iterations=12), output_cap=4_096)
    sent = [sum(estimate(m.content) for m in one.messages) for one in model.asked]
    assert max(sent) <= 6_600, "the last question comes on top"
    assert max(sent) > 4_000, "as much as fits is sent"
