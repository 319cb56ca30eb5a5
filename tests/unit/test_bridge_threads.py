"""Handlers in threads: how many run at once, what becomes of those that do not return."""

from __future__ import annotations

import asyncio
import threading

import pytest

import atoll
from atoll.sandbox import bridge
from atoll.sandbox.bridge import CallFailedError, HostBridge


def make(most=4, **tools):
    return HostBridge(atoll.SandboxConfig(tools=tools, max_concurrency=most), lambda: None)


def call(one, name, *args):
    return one.handle("host.call", {"name": name, "args": list(args)})


async def until(true):
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110 - threads end by themselves
            await asyncio.sleep(0.005)


async def test_no_more_run_at_once_than_allowed():
    running, most = 0, 0
    lock = threading.Lock()

    def work():
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.01)
        with lock:
            running -= 1

    one = make(3, work=work)
    await asyncio.gather(*(call(one, "work") for _ in range(20)))
    assert most == 3
    one.close()


async def test_handlers_that_never_return_are_bounded_and_the_guest_is_told(monkeypatch):
    monkeypatch.setattr(bridge, "MAX_LEFT_RUNNING", 3)
    let_go = threading.Event()
    one = make(1, hang=let_go.wait, fine=lambda: 5)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await call(one, "hang")
    with pytest.raises(CallFailedError, match="3 handlers of earlier calls have not returned"):
        await call(one, "fine")
    let_go.set()
    await until(lambda: not one._threads._left_running)
    assert await call(one, "fine") == 5
    one.close()


async def test_threads_are_used_again_and_end_with_the_bridge():
    before = threading.active_count()
    one = make(2, name=lambda: threading.current_thread().ident)
    assert len({await call(one, "name") for _ in range(10)}) == 1
    one.close()
    await until(lambda: threading.active_count() <= before)
