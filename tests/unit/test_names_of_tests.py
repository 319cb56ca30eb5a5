"""Files of tests: pytest imports them by their names alone, whatever folder they are in."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def test_no_two_files_of_tests_have_one_name():
    names = Counter(file.name for file in TESTS.rglob("test_*.py"))
    assert [name for name, times in names.items() if times > 1] == []
