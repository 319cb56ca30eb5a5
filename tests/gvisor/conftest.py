"""Tests of gVisor alone; without runsc they are skipped, and say why."""

from __future__ import annotations

import pytest
import usable


@pytest.fixture(scope="session")
def gvisor_here() -> None:
    """For tests that start a container."""
    usable.skip_if_missing("gvisor")
