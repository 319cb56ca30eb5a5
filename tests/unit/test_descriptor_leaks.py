"""Descriptors that run out: one request fails in words; nothing else ends, and nothing leaks."""

from __future__ import annotations

import asyncio
import errno
import os
import socket

import pytest

import atoll
from atoll.backends.restricted import sandbox
from atoll.errors import BusyError, SandboxError, SandboxStartError, StateError
from atoll.jail.supervisor import client, packets
from atoll.launch.guest_handle import pipes
from atoll.rpc import transports
from atoll.rpc.connection import Peer
from atoll.rpc.passed_fds import PassedFds, Reply
from atoll.state.transfer import Inflow, Outflow

TOO_MANY = OSError(errno.EMFILE, "Too many open files")


def descriptors():
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("works", range(4))
def test_pipes_leak_nothing_when_one_fails(monkeypatch, works):
    left, real = works, os.pipe2

    def pipe2(flags):
        nonlocal left
        left -= 1
        if left < 0:
            raise TOO_MANY
        return real(flags)

    before = descriptors()
    monkeypatch.setattr(os, "pipe2", pipe2)
    with pytest.raises(SandboxStartError, match="Too many open files"), pipes(4):
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


async def test_a_state_for_which_no_pipe_is_free_is_an_error_of_the_state(monkeypatch):
    def pipe2(_flags):
        raise TOO_MANY

    monkeypatch.setattr(os, "pipe2", pipe2)
    with pytest.raises(StateError, match=r"the state cannot be moved: .* Too many open files"):
        Inflow(None, 1)


async def test_folders_that_find_no_room_fail_one_call_and_not_the_supervisor(monkeypatch):
    stuck = []
    monkeypatch.setattr(client, "ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(client.supervisor, "end_stuck", stuck.append)
    ours, theirs = packets.pair()
    lease, before = client.Lease(ours), descriptors()
    answer = asyncio.ensure_future(lease.folders())
    await asyncio.sleep(0)
    assert packets.receive(theirs).kind == "folders"
    packets.send(theirs, "folders", [0] * (packets.MAX_FDS + 1))  # as if this process had no room
    with pytest.raises(SandboxError, match=r"folder cannot be opened: .* Too many open files"):
        await answer
    await asyncio.sleep(0.1)
    assert (stuck, descriptors()) == ([], before)
    theirs.close()
    await lease.close()


async def test_descriptors_that_find_no_room_fail_one_call_and_not_the_connection(monkeypatch):
    monkeypatch.setattr(transports, "FD_ROOM", socket.CMSG_SPACE(4))  # the kernel cuts them off
    many = transports.MAX_FDS

    async def serve(method, _params, passed_fds):
        fds = [os.dup(0) for _ in range(many)] if method == "many" else []
        return Reply({"came": len(passed_fds)}, PassedFds(fds))

    ends = [Peer(sock, serve, print, lambda _why: None) for sock in socket.socketpair()]
    before = descriptors()
    with pytest.raises(SandboxError, match="no file descriptor is free"):
        await ends[0].call("many", {})
    with pytest.raises(BusyError, match="no file descriptor is free"):
        await ends[0].call("none", {}, [os.dup(0) for _ in range(many)])
    assert (await ends[0].call("none", {}, [os.dup(0)])).value == {"came": 1}
    assert descriptors() == before
    for end in ends:
        end.end("over")


def test_a_worker_that_ends_at_once_is_told_with_its_end(monkeypatch):
    monkeypatch.setattr(sandbox, "_BOOT", "raise SystemExit(3)")
    with pytest.raises(SandboxStartError, match="ended itself with exit code 3"):
        atoll.create_sandbox(backend="restricted", min_isolation="guarded")
