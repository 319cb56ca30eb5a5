"""A guard that breaks ordinary Python is a failure: what a model writes runs, and how much of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ordinary import SNIPPETS

TOOL = Path(__file__).resolve().parents[2] / "tools" / "guard_share.py"


@pytest.mark.spec("R4.1")
@pytest.mark.parametrize("name", SNIPPETS)
def test_ordinary_python_runs_in_the_backend(kept, name):
    code, value = SNIPPETS[name]
    result = kept.execute(code)
    assert (result.error, result.value) == (None, value), result.stderr


def test_most_examples_of_the_library_work_in_the_backend():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(TOOL), "collections", "json", "difflib", "decimal"],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    (row,) = [line for line in done.stdout.splitlines() if "**all**" in line]
    _, _, tried, share, *_ = (cell.strip() for cell in row.split("|"))
    assert int(tried) > 100
    assert float(share.removesuffix("%")) >= 98
