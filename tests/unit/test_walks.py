"""How far pieces of work walk through Atoll: a change that lets one creep up is noticed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from atoll.jail.measure import cgroup

WALKS = Path(__file__).parents[2] / "tools" / "walks.py"
MEASURED = {
    "native": (44, 10, 24),
    "daemon": (88, 22, 57),
    "run": (80, 19, 55),
    "question": (517, 87, 305),
}
"""Functions, files and switches of files of each walk, as `python tools/walks.py` printed them."""
SLACK = 1.1 if cgroup.find() is not None else 1.25
"""Without control groups of our own, more is measured by hand."""


@pytest.fixture(scope="module")
def walks() -> dict[str, tuple[int, ...]]:
    """The walks of a process of its own, in which nothing else runs."""
    printed = subprocess.run(
        [sys.executable, str(WALKS)], capture_output=True, text=True, check=True, timeout=120
    ).stdout
    rows = [line.strip("| ").split(" | ") for line in printed.splitlines()[2:]]
    return {name: tuple(map(int, counts)) for name, *counts in rows}


@pytest.mark.parametrize("name", MEASURED)
def test_a_walk_is_no_longer_than_it_was(walks, name):
    for counted, measured in zip(walks[name], MEASURED[name], strict=True):
        assert counted <= measured * SLACK, (name, walks[name], MEASURED[name])
