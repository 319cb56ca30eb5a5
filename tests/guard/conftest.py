"""Sandboxes of the `restricted` backend where the host has no jail: its own checks have to hold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import atoll
from atoll import Isolation
from atoll.backends.restricted import sandbox


async def only_guarded() -> Isolation:
    """Return the level of a host without namespaces and Landlock."""
    return Isolation.GUARDED


@pytest.fixture
def no_jail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the host measure that it can jail nothing."""
    monkeypatch.setattr(sandbox, "_level", only_guarded)


@pytest.fixture(scope="session")
def kept() -> Iterator[atoll.SyncSandbox]:
    """A session without a jail that lives through all tests; each of them leaves it usable."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sandbox, "_level", only_guarded)
        box = atoll.create_sandbox(backend="restricted", timeout_ms=20_000)
    with box:
        yield box
