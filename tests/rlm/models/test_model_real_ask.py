"""`atoll ask` with a real, small model, over a document that is far larger than its window."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from real_server import WINDOW

from atoll.agent.trajectory import CodeRan, ModelAnswered, SubcallEnded
from atoll.agent.trajectory.reader import read
from atoll.text.tokens import estimate

pytestmark = pytest.mark.llm

TEMPERATURES = ("0", "0.3", "0.6")
"""One run each, until one is right: the model has 1.5 billion parameters, and may miss."""
SECONDS = 580
QUESTION = "Where is the brass key hidden?"
NEEDLE = (
    "Day 2712: The keeper, Ilse Brandt, hid the brass key of the lighthouse "
    "under the third step of the north stair."
)


@pytest.fixture(scope="module")
def document(tmp_path_factory) -> Path:
    chosen = random.Random(4)
    lines = [
        f"Day {day}: {chosen.choice(('Anna', 'Bert', 'Cleo', 'Dora'))} counted "
        f"{chosen.randint(2, 99)} {chosen.choice(('nets', 'boats', 'barrels', 'lamps'))} "
        "at the pier and wrote it down."
        for day in range(1, 4_800)
    ]
    lines[2711] = NEEDLE
    path = tmp_path_factory.mktemp("real") / "document.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", ["local/qwen", "anthropic/qwen"])
def test_a_real_model_finds_a_fact_far_beyond_its_window(address, name, document, tmp_path):
    assert estimate(document.read_text()) > 10 * WINDOW
    for temperature in TEMPERATURES:
        trace = tmp_path / f"run-{temperature}.jsonl"
        done = subprocess.run(
            [sys.executable, "-m", "atoll.cli.main", "ask", QUESTION, "--context", str(document),
             "--model", name, "--base-url", f"{address}/v1", "--window", str(WINDOW),
             "--max-tokens", "300", "--temperature", temperature, "--max-turns", "6",
             "--budget-seconds", str(SECONDS), "--min-isolation", "jailed", "--trace", str(trace)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        print(done.stderr, done.stdout, sep="\n")
        events = read(trace).events
        told = [one.answer for one in events if isinstance(one, SubcallEnded) and not one.error]
        if (done.returncode, "third step" in done.stdout) == (0, True) and told:
            break
    assert done.returncode == 0
    assert "third step" in done.stdout
    assert any("third step" in answer for answer in told)  # of an llm_query, by the same model
    assert {one.isolation for one in events if isinstance(one, CodeRan)} == {"jailed"}
    answers = [one for one in events if isinstance(one, ModelAnswered)]
    assert all(0 < one.usage.input + one.usage.output <= WINDOW for one in answers)
    assert all(one.usd == 0 for one in answers)
