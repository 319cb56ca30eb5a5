"""Tests of gVisor alone; without runsc they are skipped, and say why."""

from __future__ import annotations

import asyncio
import functools

import pytest

import atoll
from atoll.backends.gvisor import GvisorSandbox


@functools.cache
def why_not() -> str:
    config = atoll.SandboxConfig(backend="gvisor")
    found = asyncio.run(GvisorSandbox.availability(config))
    return "" if found.usable else found.reason


@pytest.fixture
def gvisor_here() -> None:
    """For tests that start a container."""
    if reason := why_not():
        pytest.skip(f"backend gvisor cannot be used here: {reason}")
