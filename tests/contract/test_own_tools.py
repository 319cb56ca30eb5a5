"""A tool that uses the sandbox whose code calls it fails at once, instead of at the time limit."""

from __future__ import annotations

import threading

import pytest

import atoll
from atoll import Capability

pytestmark = pytest.mark.needs(Capability.BRIDGE)
OWN = "a tool cannot use the sandbox whose code is calling it"


def test_a_tool_cannot_run_a_cell_of_its_own_sandbox(open_box):
    def again():
        return box.execute("1").value

    def look():
        return box.get_variable("x")

    box = open_box(tools={"again": again, "look": look}, timeout_ms=60_000)
    for tool in ("again", "look"):
        result = box.execute(f"x = 1\n{tool}()")
        assert result.error.startswith(f"ConfigError: {OWN}")
        assert result.duration_ms < 30_000
    assert box.execute("x").value == 1


@pytest.mark.needs(Capability.FORK)
def test_a_tool_cannot_clone_or_save_its_own_sandbox(open_box):
    def use(name):
        getattr(box, name)()

    box = open_box(tools=[use], timeout_ms=60_000)
    for name in ("fork", "checkpoint", "branches", "save"):
        assert OWN in box.execute(f"use({name!r})").error


async def test_an_async_tool_cannot_run_a_cell_of_its_own_sandbox(backend):
    async def again():
        return (await box.execute("1")).value

    async with atoll.aio.create_sandbox(backend=backend, tools=[again], timeout_ms=60_000) as box:
        assert OWN in (await box.execute("again()")).error
        assert (await box.execute("2")).value == 2


def test_a_tool_may_run_a_cell_of_another_sandbox_and_stop_its_own(open_box):
    other = open_box()

    def ask(code):
        return other.execute(code).value

    def stop():
        box.cancel()

    box = open_box(tools={"ask": ask, "stop": stop})
    assert box.execute("ask('6 * 7')").value == 42
    assert not box.execute("stop()\nwhile True: pass").success
    assert box.execute("ask('1') + 1").value == 2


def test_a_caller_in_another_thread_waits_for_its_turn(open_box):
    """Also one that a tool has started: it goes on when the cell that called the tool is over."""
    found = []

    def later():
        thread = threading.Thread(target=lambda: found.append(box.execute("x + 1").value))
        thread.start()
        threads.append(thread)

    threads = []
    box = open_box(tools=[later])
    assert box.execute("x = 1\nlater()\nx = 2").success
    threads[0].join(60)
    assert found == [3]
