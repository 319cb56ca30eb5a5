"""A guest that is lost before it has read the caller's code is replaced, and nobody notices.

It is stopped, so that it reads nothing, and then killed with what holds it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from poolkit import Family, until, zygote_hosts, zygotes

import atoll
from atoll.config import SandboxConfig
from atoll.errors import SandboxLostError, SandboxStartError
from atoll.hosting.pool import pool as pools
from atoll.jail.measure import meter
from atoll.jail.supervisor.client import supervisor
from atoll.launch.guest_handle import limits_of
from atoll.launch.zygote_client import ZygoteClient
from atoll.policy import ExecutionPolicy
from atoll.sandbox.session import GuestSession
from atoll.types import Outcome

KILLED = {
    "supervisor": lambda: supervisor.pid,
    "zygote host": lambda: zygote_hosts()[0],
    "guest": lambda: meter.children(zygotes()[0])[0],
}
killed = pytest.mark.parametrize("find", KILLED.values(), ids=KILLED)


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Stands in for the check by the supervisor's number, which these tests change."""


async def stop(pid: int) -> None:
    """Stop a process; one that was not stopped yet would still read what comes."""
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")


async def execute_in_stopped(
    box: atoll.BaseSandbox, find: Callable[[], int | None], code: str = "print(6 * 7)"
) -> atoll.SandboxResult:
    """Execute in a guest that stands still and is killed then, with the process that is named."""
    (guest,) = meter.children(zygotes()[0])
    await stop(guest)
    running = asyncio.ensure_future(box.execute(code))
    await asyncio.sleep(0)  # the request is written
    os.kill(find(), signal.SIGKILL)
    return await running


@killed
async def test_a_first_cell_runs_in_another_guest(family: Family, find):
    box = await family.open()
    result = await execute_in_stopped(box, find)
    assert (result.stdout, result.state_lost) == ("42\n", False)


@killed
async def test_a_cell_of_a_used_session_is_not_run_again(family: Family, find):
    box = await family.open()
    await box.execute("x = 1")
    try:
        result = await execute_in_stopped(box, find, "print(x)")
    except SandboxLostError:
        assert find is KILLED["supervisor"]
    else:
        assert (result.kind, result.state_lost) == (Outcome.CRASHED, True)


async def test_a_file_that_was_written_before_counts_as_use(family: Family):
    box = await family.open()
    await box.files.write("a.txt", "kept")
    result = await execute_in_stopped(box, KILLED["guest"], "print(open('a.txt').read())")
    assert (result.kind, result.state_lost) == (Outcome.CRASHED, True)


async def test_a_guest_that_died_unused_took_nothing_along(family: Family):
    box = await family.open()
    os.kill(zygote_hosts()[0], signal.SIGKILL)
    await until(lambda: box._guest.session.dead)
    result = await box.execute("print(6 * 7)")
    assert (result.stdout, result.state_lost) == ("42\n", False)


async def test_a_parked_guest_that_dies_in_its_handshake_is_replaced(family: Family):
    await family.pool.park("bare", limits_of(ExecutionPolicy(), 0))
    parked = meter.children(zygotes()[0])
    for guest in parked:
        await stop(guest)
    opening = asyncio.ensure_future(family.open(context="a text"))
    await until(lambda: family.pool.stats()["bare"]["taken_parked"] == 1)
    os.kill(zygote_hosts()[0], signal.SIGKILL)
    box = await opening
    assert (await box.execute("print(context)")).stdout == "a text\n"


async def test_a_run_whose_guest_is_lost_before_it_reads_is_run_in_another(family: Family):
    await family.pool.park("bare", limits_of(ExecutionPolicy(), 0))
    for guest in meter.children(zygotes()[0]):
        await stop(guest)
    work = family.pool.run("print(6 * 7)", SandboxConfig(preload="bare"))
    running = asyncio.ensure_future(work)
    await until(lambda: family.pool.stats()["bare"]["taken_parked"] == 1)
    os.kill(zygote_hosts()[0], signal.SIGKILL)
    result = await running
    assert (result.stdout, result.state_lost) == ("42\n", False)


UNREAD_ANSWER = """
import json, os, time
call = {"jsonrpc": "2.0", "id": "g1", "method": "host.call", "params": {"name": "pay", "args": [], "kwargs": {}}}
for fd in sorted(int(name) for name in os.listdir("/proc/self/fd") if int(name) > 500):
    try:
        os.write(fd, json.dumps(call).encode() + b"\\n")
    except OSError:
        pass
time.sleep(0.3)
os._exit(0)
"""


async def test_a_first_cell_that_ends_with_the_answer_to_its_call_unread_is_not_run_again(family):
    calls = []
    box = await family.open(tools={"pay": lambda: calls.append(1)})
    result = await box.execute(UNREAD_ANSWER)
    assert (result.kind, result.state_lost, calls) == (Outcome.EXITED, True, [1])


@pytest.mark.parametrize("error", [SandboxLostError("killed"), SandboxStartError("zygote", "no")])
async def test_a_call_starts_at_most_four_guests(family: Family, monkeypatch, error):
    starts = []

    async def fork_guest(_client, _limits):
        starts.append(1)
        raise error

    monkeypatch.setattr(ZygoteClient, "fork_guest", fork_guest)
    monkeypatch.setattr(pools, "ASKED_BEFORE_PARKED", 100)  # none is started besides
    with pytest.raises(type(error)):
        await family.open()
    assert len(starts) == (4 if error.retryable else 1)


async def test_starts_of_a_first_cell_and_of_its_guest_are_counted_together(
    family: Family, monkeypatch
):
    """Each guest that starts is lost before it reads; each second start fails."""
    box, starts = await family.open(), []
    launch = box._launcher.launch

    async def launched(*given):
        starts.append(1)
        if len(starts) % 2:
            raise SandboxLostError("killed")
        return await launch(*given)

    async def lost(self, *_args, **_options):
        self.alive = False
        raise SandboxLostError("killed")

    monkeypatch.setattr(box._launcher, "launch", launched)
    monkeypatch.setattr(GuestSession, "execute", lost)
    monkeypatch.setattr(GuestSession, "unread", True)
    with pytest.raises(SandboxLostError, match="killed"):
        await box.execute("print(1)")
    assert len(starts) == 3
