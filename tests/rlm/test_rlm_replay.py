"""A run that was recorded is the same run again: answer, trajectory, costs, but for the time."""

from __future__ import annotations

import dataclasses

import pytest
from rlm_runs import TEXT, ask, cell, script

from atoll.agent.rlm.models.recorded import Recorder, Replay
from atoll.errors import ModelRecordError

TIMES = ("run", "at", "elapsed_ms", "duration_ms", "seconds")


def story(answer):
    """A trajectory without what differs from one run to the next: to compare runs by."""
    told = [
        {"kind": type(one).__name__, **dataclasses.asdict(one), **dict.fromkeys(TIMES)}
        for one in answer.trajectory
    ]
    for ran in (one for one in told if one["kind"] == "CodeRan"):
        ran["calls"] = [{**call, "duration_ms": None} for call in ran["calls"]]
    return told


def models():
    main = script(
        cell("hits = grep('value 49$')\nprint(hits)"),
        cell("print(llm_query('is it 7? ' + str(hits)))", "1 / 0"),
        cell("print(rlm_query('check', context[:400]))"),
        cell("FINAL('entry 7', quotes=['entry 7: value 49'])"),
        name="a/main",
        usd_per_call=0.01,
    )
    sub = script("yes", cell("FINAL('checked')"), name="a/sub", usd_per_call=0.001)
    return main, sub


async def test_a_recorded_run_is_played_back_event_by_event(tmp_path):
    path = tmp_path / "record.jsonl"
    main, sub = (Recorder(one, path) for one in models())
    first = await ask(main, sub_model=sub)
    await main.close()
    await sub.close()
    again = (Replay(path, name=name) for name in ("a/main", "a/sub"))
    main, sub = again
    second = await ask(main, sub_model=sub)
    assert (main.left, sub.left) == (0, 0)
    assert story(second) == story(first)
    assert len(first.trajectory) > 20
    kept = ("text", "value", "evidence", "coverage", "usage", "cost", "calls", "turns")
    assert all(getattr(first, name) == getattr(second, name) for name in kept)
    assert first.cost == pytest.approx(0.042)


async def test_another_context_is_not_what_was_recorded(tmp_path):
    path = tmp_path / "record.jsonl"
    main, sub = (Recorder(one, path) for one in models())
    await ask(main, sub_model=sub)
    await main.close()
    await sub.close()
    with pytest.raises(ModelRecordError, match="recorded"):
        await ask(Replay(path), TEXT.replace("49", "50"), sub_model=Replay(path, name="a/sub"))


async def test_in_order_a_changed_request_gets_the_next_reply(tmp_path):
    path = tmp_path / "record.jsonl"
    main, sub = (Recorder(one, path) for one in models())
    first = await ask(main, sub_model=sub)
    await main.close()
    await sub.close()
    main, sub = (Replay(path, name=name, in_order=True) for name in ("a/main", "a/sub"))
    second = await ask(main, TEXT + "one more line\n", sub_model=sub)
    assert (main.left, sub.left) == (0, 0)
    assert second.text == first.text
