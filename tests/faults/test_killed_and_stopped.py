"""Each process of ours killed and stopped, before and during what a caller does.

Who is lost then is said in SPARED, and nobody else is; whoever waits has an answer in time.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal

import pytest
import roles
from faulting import fault
from world import OPERATIONS, World, find_jail

import atoll

pytestmark = pytest.mark.asyncio(loop_scope="module")
SPARED = {
    "supervisor": set(),
    "zygote host": {"started"},
    "zygote": {"forked", "started"},
    "jail's pid 1": {"forked", "started"},
    "guest": {"forked", "started"},
}
"""A supervisor's sessions end with it, and those forked in a zygote host with that: both hold what
the kernel ends with them. Each loss is told, and the next call is served."""
PAIRS = [(operation, role) for operation in OPERATIONS for role in SPARED]
KILLED = [
    ("open", "zygote"), ("start", "zygote host"), ("execute", "guest"), ("overrun", "zygote"),
    ("fork", "jail's pid 1"), ("save", "supervisor"), ("destroy", "jail's pid 1"),
]  # fmt: skip
"""The sample of what is killed before an operation begins."""
DURING = [
    ("open", "supervisor"), ("open", "zygote host"), ("open", "zygote"), ("start", "supervisor"),
    ("overrun", "supervisor"), ("overrun", "zygote"), ("fork", "supervisor"),
    ("save", "supervisor"), ("destroy", "supervisor"), ("destroy", "zygote"),
]  # fmt: skip
"""Which processes make calls for an operation; they are killed at each of these."""
STOPPED = [
    ("open", "zygote"), ("open", "zygote host"), ("open", "supervisor"), ("start", "supervisor"),
    ("overrun", "supervisor"), ("overrun", "zygote"), ("save", "supervisor"),
    ("destroy", "supervisor"), ("destroy", "zygote"), ("execute", "jail's pid 1"),
    ("overrun", "guest"),
]  # fmt: skip
"""The sample of what is stopped. The supervisor, the zygote host and the zygote are woken, so that
no session is lost; a guest that was stopped is ended at its time limit."""
LATER_SECONDS = 3.0
"""In which a process makes its calls for an operation, also after that was answered."""


@pytest.mark.parametrize(("operation", "role"), KILLED)
async def test_killed_before(world: World, operation: str, role: str):
    await _kill(world, operation, role)


@pytest.mark.long
@pytest.mark.parametrize(("operation", "role"), [pair for pair in PAIRS if pair not in KILLED])
async def test_killed_before_any(world: World, operation: str, role: str):
    await _kill(world, operation, role)


@pytest.mark.parametrize(("operation", "role"), DURING[:3])
async def test_killed_at_its_second_call(world: World, operation: str, role: str):
    later = await _kill_at(world, operation, role, 2)
    assert later or await _kill_at(world, operation, role, 1)  # an ordinary user has fewer


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("operation", "role"), DURING)
async def test_killed_at_every_call(world: World, operation: str, role: str):
    nth = 1
    while await _kill_at(world, operation, role, nth):
        nth += 1
    assert nth > 1, "this process makes no call at all: the table is wrong"


@pytest.mark.parametrize(("operation", "role"), STOPPED)
async def test_stopped(world: World, endless_waits: None, operation: str, role: str):
    await _stop(world, operation, role)


@pytest.mark.long
@pytest.mark.parametrize(("operation", "role"), [pair for pair in PAIRS if pair not in STOPPED])
async def test_stopped_before_any(world: World, endless_waits: None, operation: str, role: str):
    await _stop(world, operation, role)


async def _kill(world: World, operation: str, role: str) -> None:
    subject = await world.open()
    os.kill(await _find(role, subject), signal.SIGKILL)
    answer = await OPERATIONS[operation](world, subject)
    await world.close(answer, subject)
    await world.check(SPARED[role], what=f"{role} killed before {operation}")


async def _kill_at(world: World, operation: str, role: str, nth: int) -> bool:
    """Kill a process at its n-th call for an operation; whether there was one."""
    subject = await world.open()
    pid = await _find(role, subject)
    handle = os.pidfd_open(pid)
    with fault(pid, "any", nth, "SIGKILL") as killed:
        answer = await OPERATIONS[operation](world, subject)
        # What has jails ready makes the next one after the answer.
        await asyncio.to_thread(select.select, [handle], [], [], LATER_SECONDS)
        met = "hit" in killed.end()
    os.close(handle)
    await world.close(answer, subject)
    await world.check(SPARED[role], what=f"{role} killed at call {nth} of {operation}")
    return met


async def _stop(world: World, operation: str, role: str) -> None:
    subject = await world.open()
    pid = await _find(role, subject)
    handle = os.pidfd_open(pid)
    signal.pidfd_send_signal(handle, signal.SIGSTOP)
    try:
        answer = await OPERATIONS[operation](world, subject)
        await world.close(answer, subject)
    finally:
        _continue(handle)
    await world.check({"forked", "started"}, what=f"{role} stopped before {operation}")


async def _find(role: str, subject: atoll.BaseSandbox) -> int:
    if role in ("jail's pid 1", "guest"):
        namespace, number = await find_jail(subject)
        return roles.guest(namespace, 1 if role == "jail's pid 1" else number)
    return {
        "supervisor": roles.supervisor,
        "zygote host": roles.zygote_host,
        "zygote": roles.zygote,
    }[role]()


def _continue(handle: int) -> None:
    """Let a stopped process go on, if it was not ended meanwhile."""
    try:
        signal.pidfd_send_signal(handle, signal.SIGCONT)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)
