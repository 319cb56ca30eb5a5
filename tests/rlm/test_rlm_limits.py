"""Runs at their limits: money to the cent, tokens, calls, time, and what is answered then."""

from __future__ import annotations

import asyncio
import time

import pytest
from rlm_runs import DONE, TEXT, Gauge, ask, cell, echo, script, told

from atoll.errors import ModelReplyError
from atoll.rlm.asking import Asker
from atoll.rlm.budget import Account, Budget, BudgetError
from atoll.rlm.lanes import Lanes
from atoll.rlm.models.types import Completion, Message, Usage
from atoll.rlm.trajectory import TrajectoryWriter, events

BATCH = "got = batch_llm_query([str(n) for n in range(32)])\n"
COUNT = "FINAL(sum(getattr(one, 'failed', False) for one in got))"
HELLO = [Message("user", "hello")]


class Priced:
    """A model that costs a cent for each ten tokens that it says, and says ten."""

    name = "test/priced"

    def __init__(self, delay=0.01):
        self.delay, self.asked, self.now, self.most = delay, [], 0, 0

    def would_cost(self, usage):
        return usage.output_tokens / 1000

    async def complete(self, messages, *, max_tokens, **_options):
        self.asked.append(max_tokens)
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(self.delay)
        self.now -= 1
        usage = Usage(input_tokens=10, output_tokens=10)
        return Completion(text="ten", usage=usage, usd=0.01)

    async def close(self):
        pass


def asker(lanes=32, **limits):
    writer = TrajectoryWriter()
    return Asker(account=Account(Budget(**limits)), writer=writer, lanes=Lanes(lanes))


async def answers(one, model, count, max_tokens=4096):
    calls = (one.ask(model, HELLO, str(n), max_tokens) for n in range(count))
    return await asyncio.gather(*calls, return_exceptions=True)


async def test_money_stops_at_the_cent_one_after_the_other():
    sub = echo(usd_per_call=0.01)
    code = "n = 0\ntry:\n    while True: n += len(llm_query(str(n)))\nexcept Exception: pass"
    model = script(cell(code), "the end", usd_per_call=0.01)
    answer = await ask(model, sub_model=sub, budget=Budget(usd=0.05))
    assert (len(model.asked) + len(sub.asked), answer.calls, answer.cost) == (5, 5, 0.05)
    assert (answer.text, answer.forced) == (cell(code), True), "what it said last"


async def test_money_stops_at_the_cent_in_a_batch():
    main, sub = script(cell(BATCH + COUNT)), echo(usd_per_call=0.01, delay=0.02)
    answer = await ask(main, sub_model=sub, budget=Budget(usd=0.05))
    assert (answer.value, len(sub.asked), answer.cost) == (27, 5, 0.05)
    errors = [one.error for one in told(answer, events.SubcallEnded) if one.error]
    assert errors == ["BudgetError: the budget is spent: $0.05 of $0.05"] * 27
    assert [one.what for one in told(answer, events.BudgetWarned)] == ["usd"]
    assert told(answer, events.BudgetWarned)[0].share == pytest.approx(0.8)


async def test_calls_that_cost_less_than_was_set_aside_leave_room_for_others():
    """$1 is enough for a hundred of them, though one alone might cost $0.4."""
    one, model = asker(usd=1.0), Priced()
    done = await answers(one, model, 32, max_tokens=400)
    assert all(isinstance(each, Completion) for each in done)
    assert model.asked == [400] * 32, "none had to be short"
    assert model.most == 2
    assert one.account.left("usd") == pytest.approx(0.68)
    assert one.account.held("usd") == 0


async def test_the_last_money_buys_a_shorter_answer_and_then_none():
    one, model = asker(usd=0.05), Priced()
    done = await answers(one, model, 8, max_tokens=400)
    assert model.asked == [50, 40, 30, 20], "less than 16 tokens are not worth asking for"
    assert sum(isinstance(each, BudgetError) for each in done) == 4
    assert one.account.spent("usd") == pytest.approx(0.04)


async def test_tokens_are_not_overspent_by_a_batch():
    one, model = asker(tokens=1_000), Priced()
    done = await answers(one, model, 100, max_tokens=100)
    answered = sum(isinstance(each, Completion) for each in done)
    assert 40 <= answered < 50
    assert one.account.spent("tokens") == 20 * answered <= 1_000
    assert {str(each) for each in done if isinstance(each, BudgetError)} == {
        f"the budget is spent: {20 * answered:,} tokens of 1,000 tokens"
    }


async def test_a_call_that_was_cut_or_broken_may_have_cost_all_that_was_set_aside():
    one = asker(usd=1.0)
    slow = asyncio.create_task(one.ask(script("x", delay=60, usd_per_call=0.4), HELLO, "c1"))
    await asyncio.sleep(0.01)
    slow.cancel()
    await asyncio.wait({slow})
    assert one.account.spent("usd") == 0.4
    with pytest.raises(ModelReplyError):
        await one.ask(script(ModelReplyError("half"), usd_per_call=0.3), HELLO, "c2")
    assert one.account.spent("usd") == 0.7
    assert one.account.held("usd") == 0


async def test_calls_are_counted_over_the_whole_run():
    main, sub = script(cell(BATCH + COUNT)), echo()
    answer = await ask(main, sub_model=sub, budget=Budget(calls=11))
    assert (answer.value, len(sub.asked), answer.calls) == (22, 10, 11)


@pytest.mark.parametrize("where", ["model", "sub_model"])
async def test_a_model_that_hangs_is_cut_when_the_time_is_up(where):
    begun = time.monotonic()
    models = {"model": script(cell("llm_query('x')"), "z"), "sub_model": script("y")}
    models[where] = Gauge(["never"], delay=60)
    main = models.pop("model")
    answer = await ask(main, budget=Budget(seconds=1.0), **models)
    assert answer.forced
    assert 0.9 < time.monotonic() - begun < 30
    hung = main if where == "model" else models["sub_model"]
    assert (hung.cancelled, hung.now) == (1, 0)
    assert told(answer, events.RunEnded)[0].outcome == "forced"
    assert "1.0 s" in told(answer, events.Refused)[0].why


async def test_a_cell_is_cut_when_the_time_is_up():
    answer = await ask(script(cell("while True: pass"), "z"), budget=Budget(seconds=1.0))
    assert told(answer, events.CodeRan)[0].outcome == "timeout"
    assert (answer.forced, answer.text) == (True, cell("while True: pass"))


async def test_the_last_answer_is_asked_for_if_there_is_money_for_it():
    model = script(cell("a = 1"), "My best answer.", usd_per_call=0.01)
    answer = await ask(model, budget=Budget(usd=0.02, iterations=1))
    assert (answer.text, answer.forced, answer.cost) == ("My best answer.", True, 0.02)


async def test_a_question_that_cannot_be_paid_for_at_all_says_so():
    with pytest.raises(BudgetError, match="0 tokens of 20 tokens"):
        await ask(script("x"), "short", direct_tokens=100, budget=Budget(tokens=20))


async def test_a_child_that_has_used_its_share_answers_and_its_parent_goes_on():
    main = script(cell("got = rlm_query('one')"), cell("FINAL(got)"), usd_per_call=0.01)
    sub = script(*[cell(f"a = {n}") for n in range(9)], usd_per_call=0.01)
    answer = await ask(main, sub_model=sub, budget=Budget(usd=0.09))
    assert (answer.text, answer.forced) == (cell("a = 3"), False)
    assert len(sub.asked) == 4, "half of the 8 cents that were left"
    forced = [one.forced for one in told(answer, events.FinalGiven)]
    assert forced == [True, False]


async def test_a_model_without_a_price_under_a_limit_of_money_is_told_once():
    sub = echo(usd_per_call=None, name="local/free")
    main = script(cell("print(llm_query('a'), llm_query('b'))"), cell(DONE), usd_per_call=0.01)
    answer = await ask(main, TEXT, sub_model=sub, budget=Budget(usd=1.0))
    (refused,) = told(answer, events.Refused)
    assert refused.what == "the budget of $1"
    assert refused.why.startswith("local/free has no price")
    assert answer.cost is None
    quiet = await ask(echo(usd_per_call=None), None)
    assert not told(quiet, events.Refused), "without such a limit there is nothing to tell"
