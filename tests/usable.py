"""Backends that may be missing where the tests run: their tests are skipped, and say why."""

from __future__ import annotations

import asyncio
import functools

import pytest

import atoll
from atoll.backends import registry

BROKEN = "ATOLL_TEST_BROKEN_"
"""With a backend's name: the variable that says to all test processes why it could not be built."""
NOT_EVERYWHERE = ("gvisor",)
"""Backends that need a program which the tests cannot install."""


@functools.cache
def why_not(backend: str) -> str | None:
    """Return why a backend cannot run here; None if it can."""
    config = atoll.SandboxConfig(backend=backend)
    found = asyncio.run(registry.load(backend).availability(config))
    return None if found.usable else found.reason


def skip_if_missing(backend: str) -> None:
    """Skip the running test if its backend may be missing, and is."""
    if backend in NOT_EVERYWHERE and (reason := why_not(backend)):
        pytest.skip(f"backend {backend} cannot be used here: {reason}")


def require(backend: str) -> None:
    """Fail the running test if its backend is missing and must not be."""
    skip_if_missing(backend)
    if reason := why_not(backend):
        pytest.fail(f"backend {backend} is registered but not usable here: {reason}")
