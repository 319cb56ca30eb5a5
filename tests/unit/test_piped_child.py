"""A child that is asked through its pipes: late, ended or deaf, the host goes on."""

from __future__ import annotations

import os
import sys

import pytest

from atoll.concurrency.piped_child import PipedChild

ECHO = "import sys; data = sys.stdin.buffer.read(1 << 20); sys.stdout.buffer.write(data)"
SLOW = "import sys; sys.stdin.buffer.read(1); print('ready', flush=True)"
DEAF = "import time; print('ready', flush=True); time.sleep(600)"


@pytest.fixture
def child_of():
    """Return a function that starts a child, which is ended afterwards."""
    children = []

    def start(code: str) -> PipedChild:
        children.append(PipedChild([sys.executable, "-I", "-S", "-c", code], env={}))
        return children[-1]

    yield start
    for child in children:
        child.end()
        assert not os.path.exists(f"/proc/{child.pid}")


def minute() -> float:
    return 60.0


def nothing() -> float:
    return 0.0


def test_more_than_a_pipe_holds_goes_there_and_back(child_of):
    child, data = child_of(ECHO), os.urandom(1 << 20)
    child.send(data, minute)
    assert child.receive(1 << 20, minute) == data
    with pytest.raises(EOFError):
        child.receive(1, minute)
    assert child.exit_code(60) == 0


def test_an_answer_that_is_late_is_a_timeout(child_of):
    child = child_of(SLOW)
    with pytest.raises(TimeoutError):
        child.receive(5, nothing)
    child.send(b"x", minute)
    assert child.receive(5, minute) == b"ready"


def test_a_child_that_does_not_read_does_not_hold_the_host(child_of):
    child = child_of(DEAF)
    child.receive(5, minute)
    with pytest.raises(TimeoutError):
        child.send(bytes(1 << 20), nothing)
    child.kill()
    assert child.exit_code(60) == -9
    with pytest.raises(BrokenPipeError):
        child.send(b"x", minute)
