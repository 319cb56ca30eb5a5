"""A guard that breaks ordinary Python is a failure: what a model writes runs, and how much of it."""

from __future__ import annotations

import os
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


def test_files_that_examples_write_do_not_stay(tmp_path):
    """Numpy's examples save arrays to the current folder."""
    program = (
        "import sys, pathlib, guard_share as tool\n"
        "def module_share(name):\n"
        "    pathlib.Path('test.npy').write_text('x')\n"
        "    return tool.Share(tried=1, worked=1)\n"
        "tool.module_share = module_share\n"
        "sys.argv[1:] = ['json']\n"
        "tool.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TOOL.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "| `json` | 1 | 100.0% |" in done.stdout
    assert list(tmp_path.iterdir()) == []
