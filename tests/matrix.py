"""Which tests `make test` runs of a matrix, and in which order; `--matrix all` runs every one.

    contract tests      all of them in every backend, but for pyodide: of tests that start
                        sandboxes of their own, a second of CPU time each, one of three
    attacks             all of them in every backend as the user who runs the tests, but for the
                        daemon: one of eight (escape/test_attacks.py)
    rows of the         those that measure the same code as another row, with more at once, are
    benchmark           left out (unit/test_bench.py)
    attacks as          one of eight in every backend, if root runs the tests
    ordinary user       (escape/test_as_ordinary_user.py)

A sample is the same each time: a failure can be run again.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from sharing import DEAR

if TYPE_CHECKING:
    import pytest

ONE_OF = 3
LONG = (
    "escape/test_as_ordinary_user.py", "escape/test_controls.py", "pool/test_soak_short.py",
    "unit/test_bench.py", "pyodide/test_setup.py", "pyodide/test_index.py", "escape/test_leaks.py", "docs/",
)  # fmt: skip
"""Tests that take long one by one: at the end, others would wait for them."""


def sample(items: list[pytest.Item]) -> list[pytest.Item]:
    """Of the tests in a file that start sandboxes of a dear backend, keep one of ONE_OF."""
    seen: Counter[str] = Counter()
    chosen = []
    for item in items:
        if not _is_dear(item):
            chosen.append(item)
            continue
        file = item.nodeid.partition("::")[0]
        if seen[file] % ONE_OF == 0:
            chosen.append(item)
        seen[file] += 1
    return chosen


def _is_dear(item: pytest.Item) -> bool:
    names = getattr(item, "fixturenames", ())
    return "/contract/" in item.nodeid and "box" not in names and backend_of(item) in DEAR


def comes_late(item: pytest.Item) -> bool:
    """Whether a test is short enough to be among the last."""
    return not any(name in item.nodeid for name in LONG)


def backend_of(item: pytest.Item) -> str:
    """The backend that a test runs in, or an empty text."""
    case = getattr(item, "callspec", None)
    return str(case.params.get("backend", "")) if case is not None else ""
