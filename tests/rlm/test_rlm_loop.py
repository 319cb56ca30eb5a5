"""The loop: cells, answers in every form, what a model is told when it goes astray, endings."""

from __future__ import annotations

import asyncio
import itertools
import re

import pytest
from rlm_runs import DONE, TEXT, ask, cell, cut, first_message, script, told

from atoll import REPLEnvironment
from atoll.agent.rlm import prompts
from atoll.agent.rlm.budget import Budget
from atoll.agent.rlm.core import RLM
from atoll.agent.rlm.replies import parse
from atoll.agent.trajectory import events
from atoll.errors import ConfigError, ModelUnavailableError
from atoll.text.tokens import estimate


@pytest.mark.spec("R4.3")
@pytest.mark.parametrize(
    ("reply", "how", "text"),
    [
        (cell("FINAL('so', quotes=['entry 7: value 49'])"), "FINAL", "so"),
        (cell("found = 'x' * 3\nFINAL_VAR('found')"), "FINAL_VAR", "xxx"),
        (cell("found = 'late'") + "\nFINAL_VAR(found)", "FINAL_VAR", "late"),
        ("I have it.\nFINAL('in prose')", "answer", "in prose"),
        (cell("answer = {'content': 'by dict', 'ready': True}"), "answer", "by dict"),
        ("FINAL('no fence')", "answer", "no fence"),
    ],
)
async def test_an_answer_is_taken_however_it_is_given(reply, how, text):
    answer = await ask(script(reply))
    final = told(answer, events.FinalGiven)[0]
    assert (final.how, answer.text, answer.ended, answer.turns) == (how, text, "answered", 1)
    assert told(answer, events.RunEnded)[0].outcome == "answered"
    assert answer.way == "loop"
    assert all(one.found for one in answer.evidence)


async def test_cells_of_one_reply_run_in_order_and_an_answer_skips_the_rest():
    answer = await ask(script(cell("a = 1", "print(a + 1)", "FINAL(a)", "print('never')")))
    assert [one.code for one in told(answer, events.CodeRan)] == [
        "a = 1",
        "print(a + 1)",
        "FINAL(a)",
    ]
    assert (answer.text, answer.value) == ("1", 1)


async def test_what_cells_gave_is_fed_back_with_errors_and_repeats():
    model = script(
        cell("print('first')", "1 / 0"),
        cell("print('first')"),
        "I would look into it.",
        cell(DONE),
    )
    answer = await ask(model)
    said = [asked.messages[-1].content for asked in model.asked]
    assert "entry 0: value 0" in said[0], "the first characters are shown at once"
    assert "first" in said[1]
    assert "ZeroDivisionError" in said[1]
    assert "run this very code before" not in said[1]
    assert "run this very code before" in said[2]
    assert said[3].startswith(prompts.NO_CODE)
    assert "<output " in said[1]
    assert "(turn 3 of at most 30)" in said[3]
    assert [one.repeated for one in told(answer, events.CodeRan)] == [False, False, True, False]
    assert [one.outcome for one in told(answer, events.CodeRan)][1] == "error"


async def test_a_model_that_never_writes_code_is_warned_and_taken_at_its_word():
    model = script("It may be 49.", "I think it is 49.", "It is 49.")
    answer = await ask(model)
    assert (answer.text, answer.ended, answer.turns) == ("It is 49.", "answered", 3)
    assert told(answer, events.FinalGiven)[0].how == "text"
    warned = [asked.messages[-1].content.startswith(prompts.NO_CODE_AGAIN) for asked in model.asked]
    assert warned == [False, False, True]


@pytest.mark.spec("R4.3")
async def test_submit_asks_for_its_fields_and_gives_them_as_data():
    model = script(
        cell("SUBMIT(year='2031')"),
        "FINAL(2031)",
        cell("SUBMIT(year=2031, names=['Ada'])"),
    )
    answer = await ask(model, submit_fields={"year": int, "names": list})
    assert "SUBMIT(year: int, names: list)" in first_message(model.asked[0].messages)
    assert "names: missing or unknown" in model.asked[1].messages[-1].content
    assert "the answer has fields" in model.asked[2].messages[-1].content, "in prose too"
    assert answer.value == {"year": 2031, "names": ["Ada"]}


async def test_an_answer_in_prose_that_is_refused_is_told_and_at_last_marked():
    model = script("FINAL('a guess')", "FINAL_VAR(nothing)", "FINAL('a guess')")
    answer = await ask(model, require_exploration_before_final=True)
    assert "look before you answer" in model.asked[1].messages[-1].content
    assert "nothing" in model.asked[2].messages[-1].content
    assert (answer.text, answer.ended) == ("a guess", "refused")
    assert "look before you answer" in answer.reason
    assert told(answer, events.RunEnded)[0].outcome == "refused"


async def test_prose_does_not_get_past_the_rule_to_look_first():
    answer = await ask(script(*["It is 49."] * 3), require_exploration_before_final=True)
    assert (answer.text, answer.ended) == ("It is 49.", "refused")


async def test_after_its_turns_a_model_has_to_answer():
    model = script(cell("a = 1"), cell("b = 2"), "It is what I saw.")
    answer = await ask(model, budget=Budget(iterations=2))
    assert (answer.text, answer.ended, answer.turns) == ("It is what I saw.", "forced", 2)
    assert "2 turns were made" in model.asked[2].messages[-1].content
    assert told(answer, events.FinalGiven)[0].ended == "forced"
    assert told(answer, events.RunEnded)[0].outcome == "forced"
    assert told(answer, events.Refused)[0].why == answer.reason == "2 turns were made"


@pytest.mark.parametrize(
    ("last", "ended", "text"),
    [
        ("It is 49.", "forced", "It is 49."),
        (cell("FINAL('It is 49.')"), "forced", "It is 49."),
        ("FINAL('It is 49.')", "forced", "It is 49."),
        ("I think 49.\n" + cell("grep('x')"), "forced", "I think 49."),
        (cell("grep('x')"), "unanswered", ""),
        ("FINAL_VAR(x)", "unanswered", ""),
        ("FINAL_VAR(a)", "forced", "1"),
        ("FINAL(a)", "forced", "1"),
        ("FINAL(fifty)", "forced", "fifty"),
        (cell("FINAL(a + 1)"), "forced", "2"),
        (cell("FINAL(llm_query('x'))"), "unanswered", ""),
        ("```javascript\nconsole.log(49)\n```", "unanswered", ""),
        ('{"name": "FINAL", "arguments": {"answer": "49"}}', "unanswered", ""),
        ("<think>It is 48.</think>It is 49.", "forced", "It is 49."),
        ("<think>It is 48.</think>", "unanswered", ""),
        (" ", "unanswered", ""),
        ("```python\nFINAL('It is 4", "unanswered", ""),
        ("FINAL('It is 4", "unanswered", ""),
    ],
)
async def test_a_forced_answer_is_prose_or_none(last, ended, text):
    answer = await ask(script(cell("a = 1"), last), budget=Budget(calls=2))
    assert (answer.text, answer.ended, answer.calls) == (text, ended, 2)
    assert (
        "the budget is spent: 1 call of 2 calls, and 1 call kept for the last answer"
        in answer.reason
    )


@pytest.mark.parametrize(
    ("last", "what"),
    [
        (cell("grep('x')"), "code"),
        (" ", "empty"),
        (cut("```python\nx"), "cut off"),
        (cut(""), "cut off"),
    ],
)
async def test_a_last_reply_without_an_answer_says_what_it_was(last, what):
    answer = await ask(script(cell("a = 1"), last), budget=Budget(calls=2))
    assert answer.reason.endswith(f"and the last reply was {what}")


async def test_a_forced_answer_that_was_cut_says_so():
    answer = await ask(script(cell("a = 1"), cut("It is 4", 77)), budget=Budget(calls=2))
    assert (answer.text, answer.ended) == ("It is 4", "forced")
    assert answer.reason.endswith("and the last reply was cut off after 77 tokens")


async def test_code_in_the_reasoning_of_a_model_is_not_run_and_reasoning_is_no_answer():
    thought = "<think>perhaps\n" + cell("FINAL('wrong')") + "\n</think>\n"
    answer = await ask(script(thought + cell("FINAL('right')")))
    assert [one.code for one in told(answer, events.CodeRan)] == ["FINAL('right')"]
    assert told(answer, events.ModelAnswered)[0].text.startswith("<think>"), "for the record"
    model = script("<think>It is 5." + " Or not." * 30, "<think>So it is</think>", "")
    unanswered = await ask(model)
    assert (unanswered.text, unanswered.ended) == ("", "unanswered")
    assert "tokens went into reasoning" in model.asked[1].messages[-1].content
    sub = script("<think>five?</think>Five.")
    asked = await ask(script(cell("FINAL(llm_query('x'))")), sub_model=sub)
    assert asked.text == "Five."
    direct = await ask(script("<think>five?</think>Five."), "short", direct_tokens=1000)
    assert (direct.text, direct.way) == ("Five.", "direct")


async def test_a_name_in_prose_is_the_variable_if_there_is_one():
    answer = await ask(script(cell("total = 40 + 2"), "FINAL(total)"))
    assert (answer.text, answer.value, answer.ended) == ("42", 42, "answered")
    assert (await ask(script("FINAL(nothing)"))).text == "nothing"


async def test_an_answer_in_the_manner_of_the_loop_is_taken_from_a_direct_reply():
    answer = await ask(script("FINAL('five')"), "short", direct_tokens=1000)
    assert (answer.text, answer.way) == ("five", "direct")


async def test_one_call_is_the_last_one_and_told_so():
    model = script("It is 49.")
    answer = await ask(model, budget=Budget(calls=1, iterations=1))
    assert (answer.text, answer.ended, answer.calls) == ("It is 49.", "forced", 1)
    assert answer.reason == (
        "the budget is spent: 0 calls of 1 call, and 1 call kept for the last answer"
    )
    assert "You have 1 turn, 0 calls left, and" in first_message(model.asked[0].messages)


@pytest.mark.parametrize("empty", ["''", "' '", "None"])
async def test_an_empty_answer_is_refused_in_words(empty):
    model = script(cell(f"FINAL({empty})"), cell(f"x = {empty}\nFINAL_VAR('x')"), cell(DONE))
    assert (await ask(model)).text == "done"
    for one in model.asked[1:]:
        assert f"was given {empty}, which is no answer" in one.messages[-1].content


async def test_a_cell_that_was_cut_is_not_run_and_asked_for_again():
    model = script(
        cut("```python\nprint('half"),
        cut(cell("print('whole')") + "\n```python\nprint('half"),
        cell(DONE),
    )
    answer = await ask(model)
    assert [one.code for one in told(answer, events.CodeRan)] == ["print('whole')", DONE]
    advice = prompts.CUT.format(tokens=400)
    assert model.asked[1].messages[-1].content.startswith(advice)
    assert advice in model.asked[2].messages[-1].content
    assert "whole" in model.asked[2].messages[-1].content


async def test_empty_replies_are_no_answer_and_thinking_without_end_is_told():
    model = script("", cut("", 4096), "")
    answer = await ask(model)
    assert (answer.text, answer.ended) == ("", "unanswered")
    assert "the last one was empty" in answer.reason
    assert model.asked[1].messages[-1].content.startswith(prompts.EMPTY)
    assert "all of its 4,096 tokens went into reasoning" in model.asked[2].messages[-1].content


async def test_a_direct_answer_that_was_cut_is_continued_and_an_empty_one_asked_for_again():
    model = script(cut("The first half "), "and the second.")
    answer = await ask(model, "short", direct_tokens=1000)
    assert (answer.text, answer.ended, answer.way) == (
        "The first half and the second.",
        "answered",
        "direct",
    )
    assert [one.role for one in model.asked[1].messages[-2:]] == ["assistant", "user"]
    again = await ask(script("", "Here."), "short", direct_tokens=1000)
    assert (again.text, again.ended) == ("Here.", "answered")
    never = await ask(script("", "", ""), "short", direct_tokens=1000)
    assert (never.text, never.ended) == ("", "unanswered")
    half = await ask(script(*[cut("on and ")] * 3), "short", direct_tokens=1000)
    assert (half.text, half.ended) == ("on and on and on and ", "forced")


@pytest.mark.parametrize("write", [cell, str])
async def test_quotes_that_are_not_in_the_context_are_told_once_and_then_marked(write):
    wrong = write("FINAL('x', quotes=['entry 7: value 49', 'entry 7: value 50'])")
    model = script(wrong, wrong)
    answer = await ask(model)
    assert "1 of 2 quotes are not in the context" in model.asked[1].messages[-1].content
    assert (answer.ended, answer.turns) == ("answered", 2)
    assert [one.quote for one in answer.unfound] == ["entry 7: value 50"]
    assert "1 of 2 quotes not in the context" in repr(answer)


async def test_a_model_that_fails_ends_the_run_and_its_sandbox(tmp_path):
    heard = []
    model = script(cell("import time; print('on')"), ModelUnavailableError("busy"))
    with pytest.raises(ModelUnavailableError, match="busy"):
        await ask(model, on_event=heard.append, trajectory=tmp_path / "run.jsonl")
    ended = told(heard, events.RunEnded)[0]
    assert (ended.outcome, ended.error, ended.calls) == (
        "failed",
        "ModelUnavailableError: busy",
        1,
    )
    assert heard[-1] is ended
    assert '"failed"' in (tmp_path / "run.jsonl").read_text().splitlines()[-1]


async def test_a_sandbox_that_dies_goes_on_without_its_variables():
    model = script(cell("kept = 1"), cell("import os; os._exit(3)"), cell("FINAL(peek(7))"))
    answer = await ask(model)
    assert "variables of earlier cells are lost" in model.asked[2].messages[-1].content
    assert answer.text == "entry 0"


async def test_a_cell_has_the_time_of_its_sandbox_even_if_the_run_has_more():
    model = script(cell("while True: pass"), cell(DONE))
    answer = await ask(model, timeout_ms=300, budget=Budget(seconds=500))
    assert told(answer, events.CodeRan)[0].outcome == "timeout"


async def test_the_sub_model_works_on_what_a_run_asks():
    main = script(cell("print(rlm_query('count', context[:100]))"), cell(DONE), name="a/main")
    sub = script(cell("FINAL('below')"), name="a/sub")
    answer = await ask(main, sub_model=sub)
    assert [one.model for one in told(answer, events.ModelAsked)] == ["a/main", "a/sub", "a/main"]


async def test_one_rlm_answers_questions_at_the_same_time():
    model = script(*[lambda messages: cell(f"FINAL({first_message(messages)[10:15]!r})")] * 3)
    rlm = RLM(model, backend="native", direct_tokens=1)
    asked = (rlm.completion(f"num {n}", TEXT) for n in range(3))
    assert [one.text for one in await asyncio.gather(*asked)] == ["num 0", "num 1", "num 2"]


def look(key: str) -> str:
    """Look a key up in the register."""
    return key


async def test_the_prompt_lists_what_may_be_called_and_says_what_may_be_used():
    model = script(cell("print(look('a'))"), cell(DONE), usd_per_call=0.01)
    await ask(model, tools=[look], budget=Budget(usd=0.5, calls=50, iterations=9))
    system, first = model.asked[0].messages[0].content, first_message(model.asked[0].messages)
    assert "- look(key: 'str') -> 'str': Look a key up in the register." in system
    assert "- rlm_query(task, ctx)" in system
    assert "You have 9 turns, $0.49 left, 49 calls left, and what one last answer takes." in first
    assert "One llm_query takes about 100,000 characters." in first
    told_left = model.asked[1].messages[-1].content
    assert told_left.endswith("(turn 1 of at most 9, $0.48 left, 48 calls left)")


async def test_rlm_query_is_not_offered_where_no_run_may_be_made():
    main, sub = script(cell("rlm_query('one')"), cell(DONE)), script(cell("FINAL('x')"))
    await ask(main, sub_model=sub)
    assert "rlm_query" in main.asked[0].messages[0].content
    assert "rlm_query" not in sub.asked[0].messages[0].content.replace("batch_llm_query", "")


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("local/qwen2.5-coder-1.5b", "small"),
        ("ollama/qwen3:0.6b", "small"),
        ("ollama/llama3.1:8b", "medium"),
        ("ollama/gemma3:12b", "medium"),
        ("openai/gpt-5-mini", "medium"),
        ("openai/gpt-5", "large"),
        ("anthropic/claude-sonnet-4-5", "large"),
        ("ollama/qwen3:235b", "medium"),
        ("scripted/model", "medium"),
    ],
)
def test_a_profile_is_chosen_by_the_name_of_a_model(name, profile):
    assert prompts.profile_of(name).name == profile


async def test_a_profile_can_be_named_and_a_short_prompt_has_the_question_last():
    model = script(cell("grep('entry 7:')"), cell(DONE), name="openai/gpt-5")
    await ask(model, profile="small", tools=[look], budget=Budget(iterations=9))
    system, *example, first, _, seen = model.asked[1].messages
    assert [one.content for one in example] == list(prompts.SHORT_EXAMPLE)
    assert "- grep(pattern)" in system.content
    assert "- look(key" in system.content, "the caller's tools are always listed"
    assert "llm_query" not in system.content
    assert first.content.endswith("\nQuestion: What is it?")
    assert "It ends:" not in first.content
    turns, asked, advice = seen.content.splitlines()[-3:]
    assert turns == "(turn 1 of at most 9)"
    assert asked == "Question again: What is it?"
    assert advice in prompts.SMALL.reminder
    assert "llm_query" not in first.content
    assert estimate(system.content + "".join(prompts.SHORT_EXAMPLE)) < 800


def test_a_model_that_repeats_itself_is_told_searches_that_it_has_not_tried():
    question = "Which code does depot Dale 3 have, and depot 77-B?"
    tried = ["grep('which code')", "grep('DEPOT')"]
    assert 'such as grep("3"), grep("77-B"), or answer' in prompts.repeated(question, tried)
    assert "grep for another word, or answer" in prompts.repeated("Who is it?", [])


def test_a_long_question_is_not_told_again_after_each_turn():
    assert "Question again: see above" in prompts.reminder(prompts.SMALL, "why? " * 200)


async def test_a_small_model_is_asked_for_its_last_answer_without_its_code():
    model = script(cell("grep('entry 7:')"), cell("grep('entry 9:')"), "It is 81.")
    answer = await ask(model, profile="small", budget=Budget(iterations=2))
    assert (answer.text, answer.ended) == ("It is 81.", "forced")
    system, last = model.asked[-1].messages
    assert (system.content, last.role) == (prompts.LAST_SYSTEM, "user")
    assert "Question: What is it?" in last.content
    assert "value 49" in last.content
    assert "value 81" in last.content
    assert "```python" not in last.content
    assert "turn 1 of" not in last.content


async def test_a_conversation_only_grows_so_that_a_server_need_not_read_it_again():
    model = script(*[cell(f"grep('entry {n}:')") for n in range(4)], cell(DONE))
    await ask(model, profile="small")
    for before, after in itertools.pairwise(one.messages for one in model.asked):
        *same, last = before
        assert after[: len(same)] == tuple(same)
        kept, _, _ = last.content.partition("\n<research ")  # the tree is only in the newest
        assert after[len(same)].content == kept


@pytest.mark.spec("R4.28")
async def test_the_research_tree_is_shown_from_three_nodes_on_and_only_the_newest():
    cells = [cell(f"grep('entry {n}:')") for n in range(4)]
    model = script(*cells, cell(DONE))
    await ask(model, semantic_references=False)
    shown = [
        [one.content for one in asked.messages if "## Research Context" in one.content]
        for asked in model.asked
    ]
    assert [len(trees) for trees in shown] == [0, 0, 0, 1, 1]
    assert "Progress: 0 analyzed, 3 pending, 0 stale" in shown[3][0]
    assert "[?] G4: grep(pattern='entry 3:')\n" in shown[4][0]
    assert re.search(r"<research (\w+)>\n## Research Context\n(.|\n)*</research \1>$", shown[4][0])


async def test_a_long_tree_is_cut_to_its_newest_calls_for_a_model():
    code = "for n in range(50): grep(f'entry {n}:'); peek(n + 1)"
    model = script(cell(code), cell(DONE))
    await ask(model, semantic_references=False)
    last = model.asked[-1].messages[-1].content
    assert "(80 earlier calls are left out)" in last
    assert "P50: peek(n=50)" in last
    assert estimate(last) < 2_500


def test_the_short_example_shows_what_the_environment_prints():
    """Compare without the numbers of lines and offsets, which are another text's."""
    users, replies = prompts.SHORT_EXAMPLE[::2], prompts.SHORT_EXAMPLE[1::2]
    text = "In March Ada took the boat Petrel for a week.\nThe owner of the Petrel is Tom Reed.\n"
    text += "a letter from Oslo\n" * 212
    names = ["Bo Lie", "Siv Dahl", "Tor Moe", "Per Ness", *(f"G{n}" for n in range(446))]
    rooms = [14, 3, 27, 3, *range(100, 546)]
    text += "".join(f"guest {n} has room {r}\n" for n, r in zip(names, rooms, strict=True))
    with REPLEnvironment(context=text, backend="native") as env:
        for reply, shown in zip(replies, [*users[1:], ""], strict=True):
            (code,) = parse(reply).cells
            turn = env.execute(code)
            if "FINAL" not in code:
                wanted = re.sub(
                    r"^\d+ \[\d+:\d+\]", "", "\n".join(shown.splitlines()[1:-1]), flags=re.MULTILINE
                )
                assert (
                    re.sub(r"^\d+ \[\d+:\d+\]", "", turn.observation, flags=re.MULTILINE) == wanted
                )


async def test_prompts_can_be_added_to_and_replaced():
    model = script(cell(DONE), name="openai/gpt-5")
    await ask(model, instructions="Answer in French.")
    system, *rest = model.asked[0].messages
    assert system.content.endswith("Answer in French.")
    assert len(rest) == 1, "a large model needs no example"
    model = script(cell(DONE))
    await ask(model, system_prompt="Mine:\n{tools}", examples=False)
    system, *rest = model.asked[0].messages
    assert system.content.startswith("Mine:\n- peek(n, start=0)")
    assert len(rest) == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_dept": 2}, "unknown option 'max_dept'"),
        ({"context": "x"}, "context is not for a run's sandboxes"),
        ({"max_depth": -1}, "max_depth must be 0 or more, not -1"),
        ({"profile": "tiny"}, "profile must be one of small, medium, large, not 'tiny'"),
        ({"concurrency": 0}, "concurrency must be positive"),
        ({"history_tokens": "x"}, "history_tokens must be a number"),
    ],
)
def test_a_wrong_setting_is_told_of_before_anything_runs(settings, said):
    with pytest.raises(ConfigError, match=said):
        RLM(script(), **settings)
