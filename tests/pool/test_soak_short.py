"""A short soak: zygotes are killed under load, and nothing is lost, crossed or left behind."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KILLS = 5


@pytest.mark.spec("R2.10")
@pytest.mark.timeout(600)
def test_executions_survive_killed_zygotes_and_leave_nothing():
    options = ["--executions", "150", "--concurrency", "16", "--kill-every", "30"]
    command = [sys.executable, "-m", "bench.soak", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    first, *_, last = done.stdout.splitlines()
    assert re.match(
        rf"150 executions in [\d.]+ s, {KILLS} zygotes killed: (14\d|150) answered", first
    )
    assert last == "every bound was kept"
    assert "150/150" in done.stderr
