"""Rows about starting: from nothing to an answer and to the end of all processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING
from unittest import mock

import atoll
from bench.rows import Arms, Goal, row, timed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.rows import Scale

CODE = "print('hi')"
GOAL, BACK_TO_BACK = Goal(ratio=1.6), Goal(ratio=0.6)
AGAINST = "python -c \"print('hi')\""
IN_A_ROW = 10


@row(
    what="native: start, print('hi'), destroy",
    against=AGAINST,
    rounds=50,
    goal=GOAL,
)
def start(_scale: Scale) -> Iterator[Arms]:
    yield Arms(ours=timed(lambda: in_sandbox("native")), theirs=timed(_subprocess))


@row(
    what="daemon: open, print('hi'), destroy, back to back, blocking",
    against=AGAINST,
    rounds=10,
    goal=BACK_TO_BACK,
)
def daemon_back_to_back(_scale: Scale) -> Iterator[Arms]:
    with running_daemon():
        in_sandbox("daemon")
        yield Arms(
            ours=timed(lambda: in_sandbox("daemon"), times=IN_A_ROW),
            theirs=timed(_subprocess, times=IN_A_ROW),
        )


@contextlib.contextmanager
def running_daemon(*options: str) -> Iterator[None]:
    """Run a daemon for this measurement alone, with its default libraries imported."""
    command = [sys.executable, "-m", "atoll.cli.main", "daemon"]
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, ATOLL_DAEMON_SOCKET=f"{folder}/daemon.sock"),
    ):
        try:
            subprocess.run([*command, "start", *options], check=True, stdout=subprocess.DEVNULL)
            yield
        finally:
            subprocess.run([*command, "stop"], check=True, stdout=subprocess.DEVNULL)


def in_sandbox(backend: str) -> None:
    """Start a sandbox, print in it, and destroy it."""
    with atoll.create_sandbox(backend=backend) as box:
        assert box.execute(CODE).stdout == "hi\n"


def _subprocess() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, check=True)
    assert done.stdout == b"hi\n"
