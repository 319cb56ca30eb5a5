"""Shared by all tests: rings, sandboxes that are always destroyed, capabilities asked for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.backends import registry
from atoll.jail.client import warden

Open = Callable[..., atoll.SyncSandbox]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*capabilities): what a ring must be able to do")


@pytest.fixture(autouse=True, scope="session")
def key_of_the_tests() -> Iterator[None]:
    """States are signed with a key of the tests' own: nothing is put into anybody's home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATOLL_STATE_KEY", "a key for the tests alone")
        yield


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """After every test, no jail of this process is left: whoever opens a sandbox destroys it."""
    before = _jails()
    yield
    end = time.monotonic() + 3
    while (left := _jails() - before) and time.monotonic() < end:
        time.sleep(0.02)
    assert not left, f"jails left behind: {left}"


def _jails() -> set[str]:
    try:
        return set(Path(f"/proc/{warden.pid}/task/{warden.pid}/children").read_text().split())
    except OSError:
        return set()


@pytest.fixture(params=registry.names())
def ring(request: pytest.FixtureRequest) -> str:
    """Every registered ring in turn; one that lacks what a test needs says so."""
    name: str = request.param
    found = asyncio.run(registry.load(name).availability(atoll.REPLConfig(backend=name)))
    if not found.usable:
        pytest.fail(f"ring {name} is registered but not usable here: {found.reason}")
    marker = request.node.get_closest_marker("needs")
    missing = set(marker.args if marker else ()) - registry.load(name).capabilities
    if missing:
        pytest.skip(f"ring {name} declares no {', '.join(sorted(missing))}")
    return name


@pytest.fixture
def open_box(ring: str) -> Iterator[Open]:
    """Opens sandboxes of the ring, and destroys them at the test's end."""
    opened: list[atoll.SyncSandbox] = []

    def open_one(**options: Any) -> atoll.SyncSandbox:
        options.setdefault("timeout_ms", 20_000)
        box = atoll.create_sandbox(backend=ring, **options)
        opened.append(box)
        return box

    yield open_one
    for box in opened:
        box.destroy()


@pytest.fixture
def box(open_box: Open) -> atoll.SyncSandbox:
    """One sandbox of the ring, with defaults."""
    return open_box()
