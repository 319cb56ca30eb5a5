"""The recipes of docs/images.md that need an image: run as they stand, with an image made here."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from atoll.images import get_image
from atoll.images.obtain import name_image

PAGE = Path(__file__).resolve().parents[2] / "docs/images.md"
TESTS = """
import unittest, solution

class Double(unittest.TestCase):
    def test_it(self): self.assertEqual(solution.double(2), 4)
"""


def recipe(heading: str) -> str:
    """Return the first Python example below a heading of the page."""
    section = PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


def test_attempts_at_a_task_have_the_tasks_image_and_nothing_of_each_other(
    make_image: Callable[[Callable[[Path], None]], str],
) -> None:
    def fill(top: Path) -> None:
        (top / "testbed").mkdir()
        (top / "testbed/test_solution.py").write_text(TESTS)

    name_image(get_image(make_image(fill)), "bench/task:1").close()
    code = recipe("Tasks with an image each, as in SWE-bench")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("[False, True]\n", 0), done.stderr
