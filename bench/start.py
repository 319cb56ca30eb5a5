"""Rows about starting: from nothing to an answer, and all of it gone again."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import atoll
from bench.rows import Arms, Goal, row, timed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.rows import Scale

CODE = "print('hi')"
GOAL = Goal(ratio=1.6)


@row(
    what="native: start, print('hi'), destroy",
    against="python -c \"print('hi')\"",
    rounds=50,
    goal=GOAL,
)
def start(_scale: Scale) -> Iterator[Arms]:
    yield Arms(ours=timed(_sandbox), theirs=timed(_subprocess))


def _sandbox() -> None:
    with atoll.create_sandbox(backend="native") as box:
        assert box.execute(CODE).stdout == "hi\n"


def _subprocess() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, check=True)
    assert done.stdout == b"hi\n"
