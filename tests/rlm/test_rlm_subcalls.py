"""Sub-calls: depth, side by side, asked once, failing alone, contexts shared, all paid for once."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import time

import pytest
from rlm_runs import DONE, TEXT, Counters, ask, cell, first_message, script, told

from atoll.agent.rlm.budget import Account, Budget
from atoll.agent.rlm.core import RLM
from atoll.agent.rlm.prompts import EXAMPLE
from atoll.agent.rlm.run import Run
from atoll.agent.rlm.subcalls import Work
from atoll.agent.trajectory import events
from atoll.errors import ModelUnavailableError
from atoll.sandbox.context import Context

BATCH = 32


@pytest.mark.spec("R0.9")
async def test_runs_within_runs_go_as_deep_as_allowed():
    main = script(cell("print(rlm_query('one'))"), cell(DONE))
    sub = script(
        cell("print(rlm_query('two'))"),
        cell("print(rlm_query('three'))"),
        "at the bottom",
        cell("FINAL('from two')"),
        cell("FINAL('from one')"),
    )
    answer = await ask(main, sub_model=sub, max_depth=2, context=TEXT)
    ended = {one.answer: one for one in told(answer, events.SubcallEnded)}
    assert {text: (one.depth, one.downgraded) for text, one in ended.items()} == {
        "at the bottom": (2, True),
        "from two": (1, False),
        "from one": (0, False),
    }
    assert "from one" in main.asked[1].messages[-1].content
    assert re.match(r"three\n\n<text \w+>\nentry 0: value 0", sub.asked[2].messages[0].content)
    assert max(one.depth for one in answer.trajectory) == 3


async def test_no_run_is_made_within_a_run_at_depth_0():
    sub = script("plain")
    main = script(cell("FINAL(rlm_query('one', 'a ' * 30000))"))
    answer = await ask(main, sub_model=sub, max_depth=0)
    assert told(answer, events.SubcallEnded)[0].downgraded
    assert "[40,000 more characters are not shown]" in sub.asked[0].messages[0].content


class Together(Counters):
    """A model that answers nobody before BATCH of its calls are under way."""

    def __init__(self) -> None:
        super().__init__([lambda messages: messages[-1].content], forever=True)
        self._all = asyncio.Event()

    async def complete(self, *args, **options):
        if self.now + 1 == BATCH:
            self._all.set()
        self.now += 1
        await asyncio.wait_for(self._all.wait(), 60)
        self.now -= 1
        return await super().complete(*args, **options)


async def test_all_calls_of_a_batch_are_under_way_at_once():
    code = f"""
prompts = [str(number) for number in range({BATCH})]
FINAL(batch_llm_query(prompts) == prompts)"""
    answer = await ask(script(cell(code)), sub_model=Together(), concurrency=BATCH)
    assert answer.value is True, "one after the other, the first call would wait in vain"


async def test_identical_calls_are_asked_once_and_a_failed_one_again():
    sub = script(ModelUnavailableError("busy"), "second", "third", delay=0.05)
    code = """
first = batch_llm_query(["q"] * 8)
again = batch_llm_query(["q"] * 8) + [llm_query("q"), llm_query("p")]
FINAL([sum(getattr(one, "failed", False) for one in first), again])"""
    answer = await ask(script(cell(code)), sub_model=sub)
    failed, again = answer.value
    assert failed == 8, "those who waited for the same call share its error"
    assert again == ["second"] * 9 + ["third"]
    assert len(sub.asked) == 3
    shared = [one.shared_with for one in told(answer, events.SubcallStarted)]
    assert sum(one is None for one in shared) == 3
    assert answer.calls == 3, "two answers and the root's: an error is no call"


async def test_an_identical_rlm_query_is_run_once():
    sub = script(cell("FINAL('below')"))
    code = "FINAL(batch_rlm_query(['one', 'one', {'task': 'one', 'context': context}]))"
    answer = await ask(script(cell(code)), sub_model=sub)
    assert answer.value == ["below"] * 3
    assert len(sub.asked) == 1


async def test_a_sub_call_that_crashes_is_an_error_in_its_own_slot():
    replies = ["a", ModelUnavailableError("busy"), RuntimeError("a fault of ours"), "d"]
    sub = script(*(lambda messages, n=n: _crash(replies, messages) for n in range(4)))
    code = """
got = batch_llm_query(["0", "1", "2", "3"])
FINAL([[str(one), getattr(one, "failed", False)] for one in got])"""
    answer = await ask(script(cell(code)), sub_model=sub)
    texts, failed = zip(*answer.value, strict=True)
    assert failed == (False, True, True, False)
    assert (texts[0], texts[3]) == ("a", "d")
    assert "busy" in texts[1]
    assert "RuntimeError: a fault of ours" in texts[2]
    errors = {one.error for one in told(answer, events.SubcallEnded)}
    assert errors == {None, "ModelUnavailableError: busy", "RuntimeError: a fault of ours"}


def _crash(replies, messages):
    reply = replies[int(messages[-1].content)]
    if isinstance(reply, Exception):
        raise reply
    return reply


async def test_concurrency_holds_over_all_depths_and_nobody_waits_for_ever():
    """Three runs, each with a run beneath it and a batch there: with two lanes for all of them."""

    def reply(messages):
        if len(messages) == 1:
            return "leaf"
        task, turn = first_message(messages).split()[1], len(messages)
        inner = "batch_rlm_query(['b1', 'b2'])" if task.startswith("a") else LEAVES
        return cell(f"print({inner})") if turn == 2 + len(EXAMPLE) else cell(f"FINAL('{task}')")

    sub = Counters([reply], forever=True, delay=0.01)
    main = script(cell("FINAL(batch_rlm_query(['a1', 'a2', 'a3']))"))
    async with asyncio.timeout(60):
        answer = await ask(main, sub_model=sub, concurrency=2, max_depth=2)
    assert answer.value == ["a1", "a2", "a3"]
    assert sub.most == 2


LEAVES = "batch_llm_query([str(n) for n in range(4)])"


async def test_a_context_is_shared_with_children_and_a_slice_is_theirs_alone(monkeypatch):
    given, work = [], Run._work

    async def seen(self, question, context, calls, options):
        given.append(context.context)
        return await work(self, question, context, calls, options)

    monkeypatch.setattr(Run, "_work", seen)
    main = script(cell("rlm_query('one')", "rlm_query('two', context[:30])", DONE))
    sub = script(cell("FINAL(len(context))"), cell("FINAL(context)"))
    context = Context.from_text(TEXT)
    answer = await ask(main, context, sub_model=sub)
    assert [one is context for one in given] == [True, True, False]
    first, second = told(answer, events.SubcallEnded)
    assert (first.answer, second.answer) == (str(len(TEXT)), TEXT[:30])
    facts = [one.context for one in told(answer, events.SubcallStarted)]
    assert facts == [{"length": len(TEXT), "shared": True}, {"length": 30, "shared": False}]


async def test_data_is_shared_with_children_too():
    data = {"pumps": [{"id": n} for n in range(9_000)]}
    main = script(cell("FINAL(rlm_query('how many?'))"))
    sub = script(cell("FINAL(len(context['pumps']))"))
    answer = await ask(main, data, sub_model=sub)
    assert answer.text == "9000"
    assert told(answer, events.SubcallStarted)[0].context["shared"]


async def test_contexts_of_children_are_let_go_of():
    sub = script(*[cell("FINAL('x')")] * 6)
    code = "FINAL(batch_rlm_query([{'task': str(n), 'context': str(n) * 99} for n in range(3)]))"
    rlm = RLM(script(cell(code), cell(code)), sub_model=sub, backend="native", direct_tokens=1)
    await rlm.completion("?", TEXT)
    before = len(os.listdir("/proc/self/fd"))
    await rlm.completion("?", TEXT)
    end = time.monotonic() + 10
    while len(os.listdir("/proc/self/fd")) > before and time.monotonic() < end:
        gc.collect()
        await asyncio.sleep(0.05)
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_what_children_used_is_in_the_totals_once():
    main = script(
        cell("print(llm_query('q'), llm_query('q'), rlm_query('one'))"),
        cell(DONE),
        usd_per_call=0.1,
    )
    sub = script("a", cell("print(llm_query('deep'))"), "b", cell("FINAL('x')"), usd_per_call=0.2)
    answer = await ask(main, sub_model=sub)
    answered = told(answer, events.ModelAnswered)
    assert (answer.calls, answer.cost) == (6, 1.0)
    assert answer.usage.input_tokens == sum(one.usage.input for one in answered)
    assert answer.usage.output_tokens == sum(one.usage.output for one in answered)
    ended = told(answer, events.RunEnded)[0]
    assert (ended.usd, ended.calls, ended.usage.input) == (1.0, 6, answer.usage.input_tokens)
    costs = {(one.depth, one.answer): one.usd for one in told(answer, events.SubcallEnded)}
    assert costs[0, "x"] == pytest.approx(0.6)
    assert costs[1, "b"] == pytest.approx(0.2)
    assert sorted(one.usd for one in told(answer, events.SubcallEnded)) == pytest.approx(
        [0.0, 0.2, 0.2, 0.6]
    )


async def test_who_leaves_does_not_take_the_answer_from_who_stays():
    work = Work("c1", asyncio.create_task(asyncio.sleep(0.05, "here")))
    leaver, stayer = (asyncio.create_task(work.answer()) for _ in range(2))
    await asyncio.sleep(0)
    leaver.cancel()
    assert await stayer == "here"
    assert leaver.cancelled()


async def test_a_call_that_nobody_waits_for_any_more_is_ended():
    task = asyncio.create_task(asyncio.sleep(60, "here"))
    only = asyncio.create_task(Work("c1", task).answer())
    await asyncio.sleep(0)
    only.cancel()
    await asyncio.wait({task, only}, timeout=5)
    assert task.cancelled()


async def test_a_child_has_half_of_what_is_left():
    account = Account(Budget(usd=1.0, tokens=1000, calls=9, seconds=100), clock=lambda: 0.0)
    with account.call(usd=0.2, tokens=200) as bill:
        bill.usd, bill.tokens = 0.2, 200
    limits = account.share(0.5).budget
    assert (limits.usd, limits.tokens, limits.calls, limits.seconds) == (0.4, 400, 4, 50)
