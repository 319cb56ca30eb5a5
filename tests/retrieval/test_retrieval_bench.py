"""The rows about search are measured by a quick run of the benchmark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
@pytest.mark.spec("R4.4")
def test_search_finds_more_than_grep_and_a_refresh_costs_less_than_an_index(tmp_path):
    file = tmp_path / "bench.json"
    only = ("retrieval-recall", "retrieval-refresh")
    options = [word for name in only for word in ("--only", name)]
    command = [sys.executable, "-m", "bench", "--quick", *options, "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(file.read_text())["rows"]}
    assert set(rows) == set(only)
    assert 0 < rows["retrieval-recall"]["ours"] <= 1
    assert rows["retrieval-recall"]["ratio"] >= 1
    assert rows["retrieval-refresh"]["ratio"] < 1
