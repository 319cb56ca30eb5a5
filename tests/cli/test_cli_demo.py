"""`atoll ask --demo`: the recording, and the local model with a stand-in for its library."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_cli_ask import alive, appears, descendants, on_a_terminal

from atoll import RLM, Budget
from atoll.agent.rlm.models.local import QWEN
from atoll.agent.rlm.models.recorded import Replay
from atoll.agent.trajectory import CodeRan
from atoll.cli.commands import demo

PATIENCE_SECONDS = 60
ANSWER = "broke down on the Elm Street bridge"
NO_EXTRAS = (
    "import sys; sys.modules.update(dict.fromkeys(['httpx2', 'xllamacpp', 're2', 'numpy']));"
    "import socket; socket.socket.connect = None;"
    "from atoll.cli.main import main; sys.exit(main(['ask', '--demo']))"
)


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch, tmp_path):
    for name in ("ATOLL_MODEL", "ATOLL_BACKEND", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))


def test_the_demo_shows_every_step_and_says_that_it_is_a_recording(atoll):
    code, out, err = atoll("ask", "--demo")
    assert code == 0
    assert ANSWER in out
    text = " ".join(err.split())
    assert f"recorded on {demo.RECORDED_ON} from {demo.RECORDED_FROM}" in text
    assert "Nothing is sent over a network" in text
    assert f"question {demo.QUESTION}" in text
    assert '│ hits = grep("order 7312")' in err
    assert "│ 2207 [" in err
    assert re.search(r"sandbox  ran the code in .* \(jailed\):", err)
    assert re.search(r"found “[^”]*Elm Street bridge” at [\d,-]+, line 2,207 seen ", text)
    assert text.index("turn 2 the model") < text.index("sub-question") < text.index("sub-answer")
    assert re.search(r"^answered  \d turns · \d model calls · .* · \$0\.00 · ", err, re.MULTILINE)
    assert "atoll ask --demo --local" in err


def test_the_demo_needs_no_extra_and_no_network():
    done = subprocess.run([sys.executable, "-c", NO_EXTRAS], capture_output=True, text=True)
    assert (done.returncode, ANSWER in done.stdout) == (0, True), done.stderr


def test_the_recording_is_what_a_run_asks_for_today():
    """Every request is in the recording: record again (tools/record_demo.py) if this fails."""
    settings = dict(demo.SETTINGS)
    budget = Budget(iterations=settings.pop("max_turns"))
    model = Replay(demo.RECORDING)
    with RLM(model, budget=budget, **settings) as rlm:
        first = rlm.completion(demo.QUESTION, demo.log_text())
    assert model.left == 0
    assert first.evidence
    assert all(one.found for one in first.evidence)
    turns = [one for one in first.trajectory if isinstance(one, CodeRan)]
    assert {one.outcome for one in turns} == {"ok"}


def test_the_demo_prints_one_object_with_json(atoll):
    code, out, err = atoll("ask", "--demo", "--json", "--quiet")
    told = json.loads(out)
    assert (code, told["outcome"], err) == (0, "answered", "")
    assert ANSWER in told["answer"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["What?"], "--demo has its own question and context: leave out QUESTION"),
        (["--context", "x"], "--demo has its own question and context: leave out QUESTION"),
        (["--model", "openai/x"], "--demo runs a recording, or with --local the local model"),
        (["--local"], "the local model is not downloaded. Type: atoll model get"),
    ],
)
def test_what_does_not_fit_a_demo_is_refused(atoll, argv, said):
    code, out, err = atoll("ask", "--demo", *argv)
    assert (code, out) == (2, "")
    assert said in err


@pytest.fixture
def local_model(monkeypatch, tmp_path):
    """Let `--model local` run a stand-in that gives these replies; a None is never given."""

    def make(*replies: str | None) -> None:
        modules = tmp_path / "modules"
        modules.mkdir()
        shutil.copy(Path(__file__).with_name("fake_xllamacpp.py"), modules / "xllamacpp.py")
        (tmp_path / "replies.json").write_text(json.dumps(replies))
        weights = tmp_path / "cache" / "llm" / QWEN.file
        weights.parent.mkdir(parents=True)
        weights.touch()
        monkeypatch.setenv("PYTHONPATH", str(modules))
        monkeypatch.setenv("FAKE_REPLIES", str(tmp_path / "replies.json"))

    return make


LOOK = '```python\nhits = grep("order 7312")\nhits\n```'
FINAL = "```python\nFINAL('van 9 broke down', quotes=['van 9 broke down'])\n```"


def test_the_local_model_answers_live_and_ends_with_the_command(local_model, command):
    local_model(LOOK, FINAL)
    done = subprocess.run([*command, "ask", "--demo", "--local"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "van 9 broke down\n"), done.stderr
    assert "demo  This is live: Qwen2.5-Coder-1.5B-Instruct runs on this machine" in done.stderr
    assert "it may answer wrongly" in " ".join(done.stderr.split())
    assert "This is a recording" not in done.stderr
    assert servers() == set()


@pytest.mark.long
def test_a_terminal_shows_that_the_local_model_is_loaded_and_writes(local_model, command):
    local_model(LOOK, FINAL)
    seen = on_a_terminal([*command, "ask", "--demo", "--local"])
    assert "… loading the local model · " in seen
    assert "… turn 1: waiting for the model (prompt of about " in seen
    stays = [line.rpartition("\x1b[2K")[2] for line in seen.split("\r\n")]
    assert not any(line.startswith("…") for line in stays)


@pytest.mark.long
def test_your_own_question_goes_to_the_local_model(local_model, command, tmp_path):
    local_model("It is blue.")
    (tmp_path / "sky.txt").write_text("The sky is blue.")
    argv = ["ask", "What?", "--model", "local", "--context", str(tmp_path / "sky.txt"), "--quiet"]
    done = subprocess.run([*command, *argv], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "It is blue.\n", "")


@pytest.mark.long
def test_ctrl_c_ends_the_local_model_too(local_model, spawn, tmp_path):
    local_model(LOOK, None)
    trace = tmp_path / "run.jsonl"
    process = spawn("ask", "--demo", "--local", "--trace", str(trace))
    appears(trace)
    end = time.monotonic() + PATIENCE_SECONDS
    while trace.read_text().count('"model_asked"') < 2:
        assert time.monotonic() < end
        time.sleep(0.02)
    below = descendants(process.pid)
    assert servers() & below
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, out) == (130, "")
    assert "atoll: interrupted after " in err
    assert "turns  1 turn done" in err
    end = time.monotonic() + PATIENCE_SECONDS
    while (left := {pid for pid in below if alive(pid)}) and time.monotonic() < end:
        time.sleep(0.05)
    assert not left


def test_ctrl_c_while_the_local_model_is_loaded_ends_it_at_once(local_model, spawn, tmp_path):
    local_model(FINAL)
    (tmp_path / "modules" / "xllamacpp.py").write_text(
        "import threading, time\n"
        f"open({str(tmp_path / 'loading')!r}, 'w')\n"
        "while True: time.sleep(1)\n"  # as the real one, it blocks SIGTERM and SIGINT
    )
    process = spawn("ask", "--demo", "--local")
    appears(tmp_path / "loading")
    below = descendants(process.pid)
    assert servers() & below
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    assert err == "atoll: interrupted before the model was asked: nothing is known yet\n"
    assert not any(map(alive, below))


def servers() -> set[int]:
    """Return the processes below this one that serve a local model."""
    mine = descendants(int(Path("/proc/self").readlink().name))
    return {pid for pid in mine if "models.local" in command_line(pid)}


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
