"""Runs at their limits: money to the cent, tokens, calls, time, and what is answered then."""

from __future__ import annotations

import asyncio
import time

import pytest
from rlm_runs import DONE, TEXT, Counters, ask, cell, cut, echo, script, told

from atoll.agent.rlm import prompts
from atoll.agent.rlm.budget import Account, Budget, BudgetError
from atoll.agent.rlm.model_calls import Concurrency, ModelCalls
from atoll.agent.rlm.models.types import Completion, Message, Usage
from atoll.agent.trajectory import TrajectoryWriter, events
from atoll.errors import ModelReplyError

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


def asker(most=32, **limits):
    writer = TrajectoryWriter()
    return ModelCalls(
        models=None,  # each call names its own
        account=Account(Budget(**limits)),
        writer=writer,
        concurrency=Concurrency(most),
    )


async def answers(one, model, count, max_tokens=4096):
    calls = (one.ask(model, HELLO, max_tokens) for _ in range(count))
    return await asyncio.gather(*calls, return_exceptions=True)


async def test_money_stops_at_the_cent_one_after_the_other():
    sub = echo(usd_per_call=0.01)
    code = "n = 0\ntry:\n    while True: n += len(llm_query(str(n)))\nexcept Exception: pass"
    model = script(cell(code), "the end", usd_per_call=0.01)
    answer = await ask(model, sub_model=sub, budget=Budget(usd=0.05))
    assert (len(model.asked) + len(sub.asked), answer.calls, answer.cost) == (5, 5, 0.05)
    assert (answer.text, answer.ended) == ("the end", "forced"), "the last cent was kept for it"


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
    slow = asyncio.create_task(one.ask(script("x", delay=60, usd_per_call=0.4), HELLO))
    await asyncio.sleep(0.01)
    slow.cancel()
    await asyncio.wait({slow})
    assert one.account.spent("usd") == 0.4
    with pytest.raises(ModelReplyError):
        await one.ask(script(ModelReplyError("half"), usd_per_call=0.3), HELLO)
    assert one.account.spent("usd") == 0.7
    assert one.account.held("usd") == 0


async def test_calls_are_counted_over_the_whole_run():
    main, sub = script(cell(BATCH + COUNT)), echo()
    answer = await ask(main, sub_model=sub, budget=Budget(calls=11))
    assert (answer.value, len(sub.asked), answer.calls) == (23, 9, 10), "one is kept for the end"


@pytest.mark.parametrize("where", ["model", "sub_model"])
async def test_a_model_that_hangs_is_cut_when_the_time_is_up(where):
    begun = time.monotonic()
    models = {"model": script(cell("llm_query('x')"), "z"), "sub_model": script("y")}
    models[where] = Counters(["never"], delay=60, forever=True)
    main = models.pop("model")
    answer = await ask(main, budget=Budget(seconds=1.0), **models)
    assert answer.ended in ("forced", "unanswered")
    assert time.monotonic() - begun < 30
    hung = main if where == "model" else models["sub_model"]
    assert (hung.cancelled, hung.now) == (len(hung.asked), 0)
    assert told(answer, events.RunEnded)[0].outcome == answer.ended
    assert "1.0 s" in told(answer, events.Refused)[0].why


async def test_a_cell_is_cut_when_the_time_is_up():
    """Its seconds are those of the start too: more than a busy machine takes for it."""
    model = script(cell("import time; time.sleep(600)"), "z")
    answer = await ask(model, budget=Budget(seconds=5.0))
    assert told(answer, events.CodeRan)[0].outcome == "timeout"
    assert answer.text in ("z", ""), "time is kept for it, and never the code"


async def test_the_last_answer_is_asked_for_if_there_is_money_for_it():
    model = script(cell("a = 1"), "My best answer.", usd_per_call=0.01)
    answer = await ask(model, budget=Budget(usd=0.02, iterations=1))
    assert (answer.text, answer.ended, answer.cost) == ("My best answer.", "forced", 0.02)


def test_what_is_kept_back_is_there_at_the_end_and_for_nothing_else():
    now = [0.0]
    account = Account(Budget(usd=1.0, tokens=100, calls=3, seconds=10), clock=lambda: now[0])
    kept = account.keep_back(usd=0.25, tokens=40, calls=1, seconds=2)
    child = account.share(1.0)
    child_kept = child.keep_back(usd=0.25, tokens=10, calls=1, seconds=4)
    left = [account.left(what) for what in ("usd", "tokens", "calls", "seconds")]
    assert left == [0.5, 50, 1, 8], "a child's seconds are not its parent's"
    assert [child.left(what) for what in ("usd", "calls", "seconds")] == [0.5, 1, 4]
    with pytest.raises(BudgetError), account.call(tokens=60):
        pass
    now[0] = 9.0
    with pytest.raises(BudgetError):
        account.check("seconds")
    for one in (child_kept, kept, kept):
        one.free()
    account.check("seconds")
    with account.call(usd=1.0, tokens=100):
        pass
    assert account.keep_back(calls=5, usd=5.0).amounts == {"calls": 2, "usd": 0}, "what is there"


async def test_a_question_that_cannot_be_paid_for_at_all_says_so():
    for direct_tokens in (100, 1):
        answer = await ask(
            script("x"), "short", direct_tokens=direct_tokens, budget=Budget(tokens=20)
        )
        assert (answer.text, answer.ended, answer.calls) == ("", "unanswered", 0)
        assert "tokens of 20 tokens" in answer.reason


async def test_a_child_that_has_used_its_share_answers_and_its_parent_is_told():
    main = script(
        cell("got = rlm_query('one')"), cell("FINAL([got, got.ended])"), usd_per_call=0.01
    )
    sub = script(cell("a = 1"), cell("a = 2"), "Two of three.", usd_per_call=0.01)
    answer = await ask(main, sub_model=sub, budget=Budget(usd=0.08))
    assert answer.value == ["Two of three.", "forced"]
    assert answer.ended == "answered"
    assert len(sub.asked) == 3, "half of the 6 cents that were left, and not kept for the end"
    assert "(an answer of rlm_query is forced: the budget is spent" in _last(main)
    assert [one.ended for one in told(answer, events.FinalGiven)] == ["forced", "answered"]
    assert told(answer, events.SubcallEnded)[0].ended == "forced"


async def test_a_parent_that_answers_with_what_a_forced_child_said_was_forced_too():
    main = script(cell("got = rlm_query('one')"), cell("FINAL(got)"))
    sub = script(cell("a = 1"), cell("a = 2"), "Two of three.")
    answer = await ask(main, sub_model=sub, budget=Budget(calls=8))
    assert (answer.text, answer.ended) == ("Two of three.", "forced")
    assert answer.reason == "it is the answer of an rlm_query that was forced"


@pytest.mark.parametrize(
    "replies",
    [
        [cell("got = rlm_query('one')\nFINAL('It is: ' + got)")],
        [cell("got = rlm_query('one')", "FINAL(len(got))")],
        [cell("got = batch_rlm_query([{'task': 'one'}])\nFINAL({'all': list(got)})")],
    ],
)
async def test_an_answer_given_before_the_model_knew_that_a_child_was_forced_is_forced(replies):
    sub = script(cell("a = 1"), cell("a = 2"), "Two of three.")
    answer = await ask(script(*replies), sub_model=sub, budget=Budget(calls=8))
    assert answer.ended == "forced"
    assert (
        answer.reason == "it was given in one turn with 1 answer of rlm_query that ended as forced"
    )


async def test_a_child_without_an_answer_is_an_error_in_its_parent():
    main = script(cell("rlm_query('one')"), cell(DONE))
    answer = await ask(main, sub_model=script("", "", ""))
    assert "the run ended without an answer: 3 replies in a row had no code" in _last(main)
    assert told(answer, events.FinalGiven)[0].ended == "unanswered"


async def test_a_child_hands_up_value_evidence_and_coverage():
    code = "got = rlm_query('one')\nFINAL([got.value, got.evidence[0]['found'], got.coverage['length']])"
    sub = script(cell("print(peek(5000))\nFINAL([1, 2], quotes=['entry 7: value 49'])"))
    answer = await ask(script(cell(code)), sub_model=sub)
    assert answer.value == [[1, 2], True, len(TEXT)]
    assert answer.coverage.shown > 4_000, "what the child was shown of the same context counts"


async def test_an_answer_of_a_model_that_was_cut_says_so_in_its_text():
    sub = script(cut("half of it", 77), "")
    code = "got = batch_llm_query(['a', 'b'])\nFINAL([got[0], got[1].failed, str(got[1])])"
    half, failed, why = (await ask(script(cell(code)), sub_model=sub)).value
    assert half == "half of it\n[the answer was cut here, after 77 tokens]"
    assert failed
    assert "the answer of the model is empty" in why


async def test_the_last_call_is_a_short_one_if_the_whole_story_cannot_be_paid_for():
    model = script(*[cell(f"print({n}, 'x' * 6000)") for n in range(20)], "Enough.")
    answer = await ask(model, budget=Budget(tokens=20_000))
    assert answer.ended in ("forced", "unanswered")
    assert answer.usage.input_tokens + answer.usage.output_tokens <= 20_000
    last = model.asked[-1].messages
    assert last[0].content == prompts.LAST_SYSTEM
    assert "Question: What is it?" in last[1].content


def _last(model):
    return model.asked[-1].messages[-1].content


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
