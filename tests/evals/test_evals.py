"""The evaluation itself: the same seed gives the same task, and each answer follows from the text."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time

import pytest

from atoll.agent.rlm.models.scripted import ScriptedModel
from atoll.errors import ModelReplyError
from atoll.text.tokens import estimate
from evals import arms
from evals.__main__ import main
from evals.arms import ARMS, Said, Setup, Spent, fitting
from evals.asking import Result, ask
from evals.families import FAMILIES
from evals.report import Row, table

SIZE = 30_000


def from_text(task) -> set[str]:
    """The answer, found in the question and the text alone."""
    asked, text = task.question, task.whole
    if task.family in ("needle", "needles"):
        depots = re.findall(r"[A-Z][a-z]+ \d", asked)
        return {re.search(rf"depot {one} is (\S+)", text)[1] for one in depots}
    if task.family == "aggregate":
        name, topic = re.search(r"customer (\w+) with the topic (\w+)", asked).groups()
        return {str(text.count(f"customer {name} | topic {topic} |"))}
    if task.family == "pairs":
        by_box = {}
        for ship, box in re.findall(r"(S-\d+) carries container (\d+)", text):
            by_box.setdefault(box, set()).add(ship)
        (twins,) = (ships for ships in by_box.values() if len(ships) > 1)
        return twins
    if task.family == "hops":
        agent = re.search(r"A-\d+", asked)[0]
        locker = re.search(rf"{agent} keeps the papers in locker (\S+)", text)[1]
        return {re.search(rf"{locker} was moved to room (\S+)", text)[1]}
    caller = re.search(r"function (\w+) calls", asked)[1]
    callee = re.search(rf"def {caller}\(.*?return (\w+)\(", text, re.DOTALL)[1]
    return {path for path, code in task.files.items() if f"def {callee}(" in code}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", [1, 2])
def test_an_answer_follows_from_the_text(family, seed):
    task = FAMILIES[family](seed, SIZE)
    assert from_text(task) == set(task.answer)
    assert 0.7 * SIZE < len(task.whole) < 1.3 * SIZE
    assert task.is_right(f"It is {', '.join(sorted(task.answer))}.")
    assert not task.is_right("I do not know.")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_seed_gives_the_same_task_and_another_seed_another(family):
    make = FAMILIES[family]
    assert make(3, SIZE) == make(3, SIZE)
    assert make(3, SIZE).whole != make(4, SIZE).whole


def test_an_answer_with_one_more_candidate_is_wrong():
    task = FAMILIES["needle"](1, SIZE)
    (code,) = task.answer
    assert task.is_right(f"The code is {code}.")
    assert not task.is_right(f"{code} or AAA-1111")
    count = FAMILIES["aggregate"](1, 10 * SIZE)
    (number,) = count.answer
    assert count.is_right(f"There are {int(number):,} of them.")


def test_a_text_is_cut_to_a_window():
    text = FAMILIES["needle"](1, SIZE).text
    part = fitting(text, 500)
    assert text.startswith(part)
    assert 400 < estimate(part) <= 500


def test_arms_answer_with_a_scripted_model():
    task = FAMILIES["needle"](1, SIZE)
    (code,) = task.answer
    place = re.search(r"depot (\w+ \d)", task.question)[1]
    typed = f"hits = grep('depot {place} is')\nFINAL(hits[0]['text'].split()[-1])"
    model = ScriptedModel([f"```python\n{typed}\n```"])
    found = ask("atoll", task, Setup(model=model, backend="native"))
    assert (found.said, found.ended, found.calls) == (code, "answered", 1)
    bare = ask("bare", task, Setup(model=ScriptedModel(["No idea."])))
    assert (bare.said, bare.ended, bare.calls) == ("No idea.", "answered", 1)
    failed = ask("bare", task, Setup(model="openai-compatible/x"))
    assert (failed.said, failed.ended) == ("", "unanswered")
    assert "base_url" in failed.reason


def test_a_text_that_the_server_finds_too_long_is_cut_further():
    sizes = []

    def reply(messages):
        sizes.append(len(messages[0].content))
        if len(sizes) < 3:
            raise ModelReplyError("status 400, context_length_exceeded")
        return "No idea."

    task = FAMILIES["needle"](1, SIZE)
    found = ask("bare", task, Setup(model=reply, window=4_096))
    assert (found.said, found.ended) == ("No idea.", "answered")
    assert sizes[0] > sizes[1] > sizes[2] > 2_000


def test_the_table_has_forced_and_unanswered_apart():
    rows = [
        Row(
            family="needle", arm="atoll", right=right, result=Result(said="", ended=ended, tokens=9)
        )
        for right, ended in ((True, "answered"), (False, "forced"), (False, "unanswered"))
    ]
    lines = table(rows).splitlines()
    assert lines[2] == "| needle | atoll | 3 | 1 | 6% to 79% | 1 | 1 | 1 | 9 | 0 | 0 | 0 |"
    assert lines[3].startswith("| all | atoll | 3 | 1 |")


def test_an_evaluation_that_was_stopped_is_continued(tmp_path, monkeypatch, capsys):
    asked = []

    async def answer(task, setup, spent):
        asked.append(task.name)
        return Said("AAA-1111")

    monkeypatch.setitem(ARMS, "bare", answer)
    out = tmp_path / "answers.jsonl"
    given = ["--model", "openai/x", "--arms", "bare", "--size", "30k", "--out", str(out)]
    given += ["--families", "needle"]
    main(given)
    main([*given, "-n", "2"])
    assert asked == ["needle-30kB-2000", "needle-30kB-2001"]
    assert capsys.readouterr().out.count("| needle | bare | 2 | 0 |") == 1
    main([*given, "--calls", "3"])
    assert len(asked) == 3, "answers under another budget are not the same"


def test_one_arm_is_asked_all_tasks_before_the_next(monkeypatch):
    asked = []

    def arm(name):
        async def answer(task, setup, spent):
            asked.append((name, task.family))
            return Said("")

        return answer

    for name in ("atoll", "bare"):
        monkeypatch.setitem(ARMS, name, arm(name))
    given = ["--model", "openai/x", "--arms", "bare", "atoll", "--size", "30k"]
    main([*given, "--families", "needle", "hops"])
    assert asked == [(arm, task) for arm in ("bare", "atoll") for task in ("needle", "hops")]


def work(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def test_the_cpu_time_of_the_models_server_is_counted(monkeypatch):
    async def answer(task, setup, spent):
        work(0.05)
        return Said("")

    monkeypatch.setitem(ARMS, "bare", answer)
    task = FAMILIES["needle"](1, SIZE)
    assert ask("bare", task, Setup(model="x", server=os.getpid())).cpu_seconds > 0.02
    assert ask("bare", task, Setup(model="x")).cpu_seconds == 0


@pytest.fixture
def busy_server():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        yield process.pid
        process.kill()


def test_a_task_over_its_cpu_seconds_is_stopped_and_keeps_what_it_used(monkeypatch, busy_server):
    ended = []

    async def answer(task, setup, spent):
        spent.add(70)
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(task.name)

    monkeypatch.setitem(ARMS, "bare", answer)
    monkeypatch.setattr("evals.asking.POLL_SECONDS", 0.01)
    task = FAMILIES["needle"](1, SIZE)
    found = ask("bare", task, Setup(model="x", server=busy_server, cpu_seconds=0.2))
    assert (found.said, found.ended, found.stopped) == ("", "unanswered", True)
    assert (found.tokens, found.calls) == (70, 1)
    assert found.cpu_seconds >= 0.2
    assert found.reason == "stopped after 0.2 CPU seconds of the model"
    assert ended == [task.name]


def test_an_answer_that_comes_with_the_limit_is_taken(monkeypatch):
    async def answer(task, setup, spent):
        work(0.3)
        return Said("all done")

    monkeypatch.setitem(ARMS, "bare", answer)
    task = FAMILIES["needle"](1, SIZE)
    found = ask("bare", task, Setup(model="x", server=os.getpid(), cpu_seconds=0.1))
    assert (found.said, found.ended, found.stopped) == ("all done", "answered", False)


def test_the_process_of_a_peer_that_is_stopped_is_ended_and_its_calls_are_counted(
    tmp_path, monkeypatch
):
    """The program stands in for `rlms`: two calls, then it works on without end."""
    program = tmp_path / "peer.py"
    noted = "open('used.txt', 'a').write('30\\n12\\n')"
    program.write_text(
        f"import os, time\n{noted}\nopen({str(tmp_path / 'pid')!r}, 'w')"
        ".write(str(os.getpid()))\ntime.sleep(3600)\n"
    )
    monkeypatch.setattr(arms, "PEER", program)
    spent = Spent()

    async def stopped():
        begun = tmp_path / "pid"
        asked = asyncio.ensure_future(
            ARMS["rlms"](FAMILIES["needle"](1, SIZE), Setup(model="local/x"), spent)
        )
        while not (begun.exists() and begun.read_text()):  # noqa: ASYNC110 - another process's file
            await asyncio.sleep(0.01)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked

    asyncio.run(stopped())
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert (spent.tokens, spent.calls) == (42, 2)


def test_a_peer_that_fails_is_a_task_not_answered(tmp_path, monkeypatch):
    program = tmp_path / "peer.py"
    program.write_text("raise SystemExit('no module named rlm')")
    monkeypatch.setattr(arms, "PEER", program)
    found = ask("rlms", FAMILIES["needle"](1, SIZE), Setup(model="local/x"))
    assert (found.said, found.ended, found.stopped) == ("", "unanswered", False)
    assert found.reason == "no module named rlm"


def test_the_table_says_how_many_were_stopped():
    rows = [
        Row(
            family="needle",
            arm="rlms",
            right=False,
            result=Result(said="", ended="unanswered", stopped=stopped),
        )
        for stopped in (True, False)
    ]
    line = table(rows).splitlines()[2]
    assert line == "| needle | rlms | 2 | 0 | 0% to 66% | 0 | 0 | 2 (1 stopped) | 0 | 0 | 0 | 0 |"


def test_cpu_seconds_without_the_local_model_say_what_to_do(capsys):
    with pytest.raises(SystemExit):
        main(["--model", "openai/x", "--cpu-seconds", "5"])
    assert "use --seconds" in capsys.readouterr().err


def test_without_the_local_model_it_says_what_to_type(monkeypatch, tmp_path):
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path))
    with pytest.raises(SystemExit, match="atoll model get"):
        main(["--families", "needle"])
