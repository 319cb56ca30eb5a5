"""What the tests of the command line share: `atoll` as a process, and in this process."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from atoll.cli import arguments
from atoll.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COMMAND = [sys.executable, "-m", "atoll.cli.main"]


@pytest.fixture(autouse=True, scope="session")
def one_parser() -> Iterator[None]:
    """The parser of all commands takes longer to make than most tests of it: it is made once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arguments, "parser", functools.cache(arguments.parser))
        yield


@pytest.fixture
def atoll(monkeypatch, capfd) -> Callable[..., tuple[int, str, str]]:
    """Run `atoll` in this process: exit code, stdout, stderr."""
    for name in ("ATOLL_BACKEND", "ATOLL_URL", "ATOLL_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    def call(*argv: str) -> tuple[int, str, str]:
        try:
            code = main(argv)
        except SystemExit as exc:
            code = int(exc.code or 0)
        return code, *capfd.readouterr()

    return call


@pytest.fixture
def command() -> list[str]:
    """How to start `atoll` as a process."""
    return COMMAND


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `atoll` as a process with pipes; it is ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*argv: str, **options) -> subprocess.Popen[str]:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = subprocess.Popen(
            [*COMMAND, *argv],
            text=True,
            **{**pipes, **options},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(autouse=True)
def own_state(monkeypatch, tmp_path):
    """No test writes to the history of whoever runs it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setitem(os.environ, "NO_COLOR", "")
