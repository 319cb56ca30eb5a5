"""A fleet whose nodes the tests may kill: one for each file of tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.local_fleet import LocalFleet, free_port


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    """A head and two nodes, each in a pid namespace of its own."""
    pytest.importorskip("ray", reason="the extra `ray` is not installed: make test-fleet")
    with tempfile.TemporaryDirectory(prefix="atoll-test-", dir="/tmp") as folder:
        made = LocalFleet(Path(folder), free_port(), keep_log=True)
        try:
            made.start("a", "b")
            with pytest.MonkeyPatch.context() as patch:
                for name, value in made.environment().items():
                    patch.setenv(name, value)
                yield made
        finally:
            made.stop()
