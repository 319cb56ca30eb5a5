"""Tasks that nothing awaits: a fault is logged, and a watch goes on after one."""

from __future__ import annotations

import asyncio
import logging

from atoll.concurrency.background import Background
from atoll.concurrency.shares import OWNER, acting_for


async def test_a_watch_goes_on_after_a_step_that_fails(caplog):
    background, done = Background(logging.getLogger("atoll.test")), asyncio.Event()
    calls = []

    def fails():
        calls.append("fails")
        raise ValueError("out of order")

    async def works():
        calls.append(OWNER.get())
        if len(calls) > 6:
            done.set()

    with acting_for("a client"):
        task = background.watch("the test", lambda: 0, fails, works)
    await asyncio.wait_for(done.wait(), 30)
    task.cancel()
    await background.wait(30)
    assert calls[:4] == ["fails", "", "fails", ""]  # it is the process's own work
    assert "the test: " in caplog.text
    assert "fails failed; it is tried again" in caplog.text
    assert len(background) == 0


async def test_a_fault_of_a_task_is_logged(caplog):
    background = Background(logging.getLogger("atoll.test"))

    async def fails():
        raise ValueError("out of order")

    background.spawn(fails())
    await background.wait(30)
    await asyncio.sleep(0)
    assert "out of order" in caplog.text
