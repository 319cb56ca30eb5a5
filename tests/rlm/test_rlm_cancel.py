"""A run that is called off: all of it ends at once, nothing is left, and the trajectory says so."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from rlm_runs import TEXT, Counters, ask, cell, script, told

from atoll.agent.environment.core import REPLEnvironment
from atoll.agent.rlm import blocking, run
from atoll.agent.trajectory import events, read
from atoll.jail.supervisor.client import supervisor

SEVERAL = "batch_rlm_query(['a', 'b'])"
PROGRAM = """
import sys
from atoll.agent.rlm.blocking import RLM
from atoll.agent.rlm.models.scripted import ScriptedModel
model = ScriptedModel(["```python\\nprint('on', flush=True)\\nllm_query('x')\\n```"])
sub = ScriptedModel(["never"], delay=600)
rlm = RLM(model, sub_model=sub, backend="native", direct_tokens=1, trajectory=sys.argv[1])
rlm.completion("?", "some text " * 100)
"""


def guests() -> set[str]:
    if supervisor.pid is None:
        return set()
    return set(Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text().split())


async def until(ready):
    async with asyncio.timeout(30):
        while not ready():  # noqa: ASYNC110 - what is watched tells nobody
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("code", ["llm_query('x')", "rlm_query('x')", "while True: pass", SEVERAL])
async def test_a_cancelled_run_ends_with_all_that_is_beneath_it(code, tmp_path):
    heard, before, others = [], asyncio.all_tasks(), guests()
    hanging = Counters(["never"], forever=True, delay=600)
    work = asyncio.create_task(
        ask(
            script(cell(f"print({code})") if "(" in code else cell(code)),
            sub_model=hanging,
            on_event=heard.append,
            trajectory=tmp_path / "run.jsonl",
        )
    )
    await until(lambda: hanging.now == code.count("'") // 2 or "while" in code)
    await asyncio.sleep(0.3)
    begun = time.monotonic()
    work.cancel()
    await asyncio.wait({work})
    took = time.monotonic() - begun
    assert work.cancelled()
    print(f"{code}: over after {took:.3f} s")
    assert took < 30, "on an idle machine it takes about a tenth of a second"
    assert hanging.now == 0
    assert hanging.cancelled == len(hanging.asked)
    assert asyncio.all_tasks() - before <= {asyncio.current_task()}
    await until(lambda: guests() <= others)
    assert heard[-1].outcome == read(tmp_path / "run.jsonl").events[-1].outcome == "cancelled"
    assert all(one.error == "cancelled" for one in told(heard, events.SubcallEnded))
    assert len(told(heard, events.SubcallEnded)) == len(told(heard, events.SubcallStarted))


async def test_a_run_that_is_cancelled_while_it_begins_leaves_no_descriptor(tmp_path, monkeypatch):
    begun = threading.Event()

    class Slow(REPLEnvironment):
        def __init__(self, config):
            super().__init__(config)
            begun.set()
            time.sleep(0.2)

    monkeypatch.setattr(run, "REPLEnvironment", Slow)
    before = len(os.listdir("/proc/self/fd"))
    work = asyncio.create_task(ask(script(), "x", documents=tmp_path))
    await until(begun.is_set)
    work.cancel()
    await asyncio.wait({work})
    del work

    def let_go():
        gc.collect()
        return len(os.listdir("/proc/self/fd")) <= before

    await until(let_go)


def test_ctrl_c_ends_a_program_that_waits_for_an_answer(tmp_path):
    path = tmp_path / "run.jsonl"
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path)], stderr=subprocess.PIPE, text=True
    )
    try:
        _wait_for(path, '"subcall_started"')
        begun = time.monotonic()
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=30)
    finally:
        program.kill()
    print(f"over after {time.monotonic() - begun:.3f} s")
    assert "KeyboardInterrupt" in said
    last = json.loads(path.read_text().splitlines()[-1])
    assert (last["event"], last["outcome"]) == ("run_ended", "cancelled")


def test_ctrl_c_in_a_thread_of_ours_has_ended_the_run_when_it_is_raised():
    sub, heard = Counters(["never"], delay=600), []
    rlm = blocking.RLM(
        script(cell("llm_query('x')")),
        sub_model=sub,
        backend="native",
        direct_tokens=1,
        on_event=heard.append,
    )
    timer = threading.Thread(target=_interrupt_when, args=(lambda: sub.now == 1,))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        rlm.completion("?", TEXT)
    assert (heard[-1].outcome, sub.now) == ("cancelled", 0)
    timer.join()


def _interrupt_when(ready):
    end = time.monotonic() + 30
    while not ready() and time.monotonic() < end:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)


def _wait_for(path, text):
    end = time.monotonic() + 30
    while not (path.exists() and text in path.read_text()):
        assert time.monotonic() < end, "it did not begin"
        time.sleep(0.02)
