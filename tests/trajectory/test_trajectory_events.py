"""Events: they survive a file, their texts have caps, and what is not known is kept."""

import json
import math

import pytest
from runs import hostile, realistic

from atoll.agent.trajectory import (
    KINDS,
    BudgetWarned,
    CodeRan,
    FinalGiven,
    Planned,
    RunStarted,
    SubcallEnded,
    SubcallStarted,
    TrajectoryWriter,
    UnknownEvent,
    Usage,
    from_dict,
    to_dict,
)
from atoll.agent.trajectory.events import DATA_CAP, LONG, NUMBER_CAP, cut


@pytest.mark.parametrize("story", [realistic, hostile])
def test_every_event_survives_json(story):
    writer = TrajectoryWriter()
    story(writer)
    assert {type(event) for event in writer.events} == set(KINDS.values())
    for event in writer.events:
        assert from_dict(json.loads(json.dumps(to_dict(event)))) == event


def test_the_kinds_field_of_a_subcall_does_not_hide_the_kind_of_event():
    told = to_dict(SubcallStarted(call="c1", kind="llm_query", prompt="?"))
    assert (told["event"], told["kind"]) == ("subcall_started", "llm_query")


def test_a_long_text_is_cut_to_its_cap_and_says_how_much_is_missing():
    code = CodeRan(turn=1, code="x" * (LONG + 1000)).code
    assert LONG - 5 <= len(code) <= LONG
    kept, mark = code.rsplit("\n", 1)
    assert mark == f"[cut: {LONG + 1000 - len(kept):,} more characters]"


@pytest.mark.parametrize("cap", [0, 5, 40, 1000])
def test_a_cut_text_is_never_over_its_cap_and_not_cut_again(cap):
    once = cut("y" * 5000, cap)
    assert len(once) <= cap
    assert cut(once, cap) == once


def test_data_is_cut_in_length_depth_and_number():
    deep = []
    for _ in range(500):
        deep = [deep]
    event = RunStarted(
        question="?",
        model="m",
        context={"deep": deep, "many": list(range(9000)), "long": "z" * 99_999},
    )
    assert len(json.dumps(event.context)) < 2 * DATA_CAP
    assert "[cut: too deep]" in json.dumps(event.context)
    assert event.context["long"].endswith("more characters]")


def test_data_that_is_no_json_is_named_by_its_type():
    event = RunStarted(question="?", model="m", context={"it": object(), "inf": math.inf})
    assert event.context == {"it": "[a object]", "inf": "[cut: no plain number]"}


def test_numbers_that_cannot_be_true_are_clamped():
    event = BudgetWarned(what="usd", used=math.inf, limit=math.nan, share=-math.inf)
    assert (event.used, event.limit, event.share) == (NUMBER_CAP, 0.0, -NUMBER_CAP)


def test_an_event_of_a_newer_version_is_kept_as_it_is():
    data = {"event": "dreamt", "id": "e9", "parent": "c1", "run": "r", "about": ["sheep"]}
    event = from_dict(data)
    assert isinstance(event, UnknownEvent)
    assert (event.kind, event.parent, event.extra["about"]) == ("dreamt", "c1", ["sheep"])
    assert to_dict(event) == data


def test_a_field_of_a_newer_version_is_kept_as_it_is():
    data = {**to_dict(Planned(way="loop", why="long")), "mood": "calm"}
    event = from_dict(data)
    assert isinstance(event, Planned)
    assert event.extra == {"mood": "calm"}
    assert to_dict(event) == data


@pytest.mark.parametrize(
    "wrong",
    [
        {"turn": "one"}, {"turn": True}, {"turn": 1.5}, {"turn": 10**30}, {"code": None}, {"code": 7},
        {"duration_ms": "1"}, {"elapsed_ms": math.nan}, {"repeated": 1}, {"spilled": []}, {"run": 5},
    ],
)  # fmt: skip
def test_a_field_of_the_wrong_type_makes_an_unknown_event_not_a_crash(wrong):
    data = {**to_dict(CodeRan(turn=1, code="x")), **wrong}
    event = from_dict(data)
    assert isinstance(event, UnknownEvent)
    assert event.kind == "code_ran"


@pytest.mark.parametrize("usage", [7, None, {"input": "many"}, {"output": 10**40}])
def test_usage_that_is_none_makes_an_unknown_event(usage):
    event = from_dict({"event": "subcall_ended", "call": "c1", "usage": usage})
    assert isinstance(event, UnknownEvent)


def test_usage_may_have_parts_of_a_newer_version():
    event = from_dict({"event": "subcall_ended", "call": "c", "usage": {"input": 3, "audio": 9}})
    assert event == SubcallEnded(call="c", usage=Usage(input=3))


@pytest.mark.parametrize("data", [{}, {"event": None}, {"event": ["x"]}, {"event": "code_ran"}])
def test_what_is_no_event_is_an_unknown_one(data):
    assert isinstance(from_dict(data), UnknownEvent)


def test_evidence_comes_back_as_it_was_given():
    proof = ({"quote": "a", "found": True, "start": 1, "end": 2, "line": 1},)
    event = FinalGiven(how="FINAL", text="a", evidence=proof)
    assert from_dict(to_dict(event)).evidence == proof
