"""Fixtures of the REPL server's tests: programs that are ended, and a word to find processes by."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from replkit import Program


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine full of tests warms up slowly."""
    monkeypatch.setenv("REPL_WARMUP_TIMEOUT_SECONDS", "60")


@pytest.fixture
def program() -> Iterator[Callable[..., Program]]:
    """Starts the program and waits until it is ready; it is ended with the test."""
    started: list[Program] = []

    def start(*options: str, ready: bool = True) -> Program:
        started.append(Program(*options))
        if ready:
            started[-1].wait_ready()
        return started[-1]

    yield start
    for one in started:
        one.kill()


@pytest.fixture
def token() -> str:
    """A word that only this test's processes carry."""
    return f"token-{uuid.uuid4().hex}"
