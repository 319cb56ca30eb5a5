"""How long an interrupted guest has to react: longer only where it waits for a core."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

import pytest

from atoll.jail.measure import meter
from atoll.jail.measure.usage import CROWD, JailUsage, ProcessUsage
from atoll.sandbox import session

GRACE = 0.02


class Guest:
    """The usage of a guest that gets `share` of a core after it was interrupted."""

    def __init__(self, share: float, *, runnable: bool, counted: bool = True) -> None:
        self._share, self._runnable, self._counted = share, runnable, counted
        self._begun = time.monotonic()
        self.looks = 0

    def cpu_seconds(self) -> float | None:
        return self._share * (time.monotonic() - self._begun) if self._counted else None

    def peak_memory(self) -> int | None:
        return None

    def is_runnable(self) -> bool:
        self.looks += 1
        return self._runnable


async def test_a_guest_that_waits_for_a_core_is_waited_for():
    guest, request = Guest(0.0, runnable=True), asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(session.ends_within_grace(request, GRACE, guest))
    while guest.looks < 3:  # noqa: ASYNC110 - it is asked by what is tested
        await asyncio.sleep(GRACE)
    request.set_result(None)
    assert await waiting


@pytest.mark.parametrize(
    "guest",
    [
        pytest.param(lambda: Guest(1.0, runnable=True), id="computes on"),
        pytest.param(lambda: Guest(0.0, runnable=False), id="sleeps on"),
        pytest.param(lambda: Guest(0.0, runnable=True, counted=False), id="not measured"),
    ],
)
async def test_a_guest_that_could_have_reacted_has_no_more_than_its_grace(guest):
    found = guest()
    request = asyncio.get_running_loop().create_future()
    assert not await session.ends_within_grace(request, GRACE, found)
    assert found.looks <= 1


async def test_waiting_for_a_core_has_an_end(monkeypatch):
    monkeypatch.setattr(session, "LONGEST_GRACE_SECONDS", 5 * GRACE)
    guest, request = Guest(0.0, runnable=True), asyncio.get_running_loop().create_future()
    assert not await session.ends_within_grace(request, GRACE, guest)
    assert 1 <= guest.looks <= 5


def test_the_processes_of_a_fork_bomb_keep_each_other_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr(meter, "is_runnable", lambda pid: pid > 1)
    usage = JailUsage({"files": {"memory": str(tmp_path / "memory.peak")}})
    for members, waits in ((1, False), (2, True), (CROWD, True), (CROWD + 1, False), (256, False)):
        (tmp_path / "cgroup.procs").write_text("".join(f"{n}\n" for n in range(1, members + 1)))
        assert usage.is_runnable() is waits, members


def test_a_process_that_computes_is_runnable_and_one_that_waits_is_not():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        usage = ProcessUsage(busy.pid)
        while (usage.cpu_seconds() or 0) < 0.1:
            time.sleep(0.01)
        assert usage.is_runnable()
        busy.kill()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as idle:
        waiting = ProcessUsage(idle.pid)
        while b"python" in os.readlink(f"/proc/{idle.pid}/exe").encode() and waiting.is_runnable():
            time.sleep(0.01)
        assert not waiting.is_runnable()
        idle.kill()
