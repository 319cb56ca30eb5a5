"""One world for the tests of a file; it is mended after each fault, and counted."""

from __future__ import annotations

import platform

import pytest
import pytest_asyncio
import roles
from world import World


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tracer knows the registers and call numbers of one machine."""
    if platform.machine() != "x86_64":
        skip = pytest.mark.skip(reason="faults are injected by ptrace on x86_64 only")
        for item in items:
            if "/faults/" in item.nodeid:
                item.add_marker(skip)


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Stands in for the check of other tests: a world is counted by itself, in more detail."""


@pytest.fixture
def short_waits(monkeypatch):
    """Waits of the host for a process that stands still; those of the supervisor are its own."""
    for module, name, seconds in roles.WAITS:
        monkeypatch.setattr(module, name, seconds)


@pytest.fixture
def endless_waits(monkeypatch):
    """No wait of the host for the supervisor or a zygote ends: what stands still has to be woken."""
    for name in ("ANSWER_SECONDS", "FORK_SECONDS"):
        module = next(module for module, known, _ in roles.WAITS if known == name)
        monkeypatch.setattr(module, name, 600.0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world():
    one = World()
    await one.start()
    yield one
    await one.stop()
