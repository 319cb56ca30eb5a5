"""Pipes that cannot be opened: whatever was opened before is closed again."""

from __future__ import annotations

import errno
import os

import pytest

from atoll.errors import SandboxError, StateError
from atoll.launch.guest_handle import pipes
from atoll.state.transfer import Inflow, Outflow


def descriptors():
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("works", range(4))
def test_pipes_leak_nothing_when_one_fails(monkeypatch, works):
    left, real = works, os.pipe2

    def pipe2(flags):
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(flags)

    before = descriptors()
    monkeypatch.setattr(os, "pipe2", pipe2)
    with pytest.raises(OSError, match="Too many"), pipes(4):
        raise AssertionError("not reached")
    assert descriptors() == before


def test_pipes_leak_nothing_when_the_block_fails():
    before = descriptors()
    with pytest.raises(KeyError), pipes(4):
        raise KeyError
    assert descriptors() == before


@pytest.mark.parametrize("fault", [SandboxError("gone"), OSError(errno.EMFILE, "x"), KeyError()])
@pytest.mark.parametrize("end", [lambda g: Inflow(g, 1), lambda g: Outflow(g, memoryview(b"x"))])
async def test_a_state_that_cannot_be_moved_leaks_nothing(fault, end):
    class Fails:
        def give(self, *_fds):
            raise fault

    before = descriptors()
    with pytest.raises((StateError, OSError, KeyError)):
        end(Fails())
    assert descriptors() == before
