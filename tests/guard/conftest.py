"""One sandbox of the `restricted` backend for many tests: each of them must leave it usable."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import atoll


@pytest.fixture(scope="session")
def kept() -> Iterator[atoll.SyncSandbox]:
    """A session that lives through all tests."""
    with atoll.create_sandbox(backend="restricted", timeout_ms=20_000) as box:
        yield box
