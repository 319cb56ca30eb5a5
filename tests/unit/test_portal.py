"""Who drives the loop of the blocking API: the main thread in a call, a thread of its own between.

A signal's handler never raises within the loop, where it would hit any call at any line.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading

import pytest

from atoll.concurrency.portal import Portal

PATIENCE_SECONDS = 20


@pytest.fixture(scope="module")
def portal():
    assert threading.current_thread() is threading.main_thread()
    return Portal.shared()


async def name_of_thread():
    return threading.current_thread().name


def test_the_main_thread_drives_the_loop_in_a_call(portal):
    assert portal.run(name_of_thread()) == "MainThread"
    with pytest.raises(ZeroDivisionError):
        portal.run(fail())


async def fail():
    raise ZeroDivisionError


def test_between_calls_a_thread_drives_the_loop(portal):
    done, kept = threading.Event(), []

    async def later():
        await asyncio.sleep(0)
        kept.append(await name_of_thread())
        done.set()

    async def start():
        kept.append(asyncio.get_running_loop().create_task(later()))

    portal.run(start())
    assert done.wait(PATIENCE_SECONDS)
    assert kept[1] in ("MainThread", "atoll-loop")  # the first, if it began within the call
    assert portal.run(name_of_thread()) == "MainThread"


def test_an_interrupt_ends_the_call_and_cancels_its_work_but_no_other(portal):
    heard, others = [], []
    finish, cancelled = threading.Event(), threading.Event()

    async def other():
        await asyncio.to_thread(finish.wait, PATIENCE_SECONDS)
        return "done"

    async def interrupted():
        try:
            signal.raise_signal(signal.SIGINT)
            heard.append("no handler ran within the loop")
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    thread = threading.Thread(target=lambda: others.append(portal.run(other())))
    with pytest.raises(KeyboardInterrupt):
        portal.run(start_and_wait(thread, interrupted()))
    assert cancelled.wait(PATIENCE_SECONDS)
    assert heard
    finish.set()
    thread.join(PATIENCE_SECONDS)
    assert others == ["done"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


async def start_and_wait(thread, work):
    thread.start()
    return await work


def test_a_signal_whose_handler_returns_does_not_end_the_call(portal):
    came = []

    async def work():
        signal.raise_signal(signal.SIGUSR1)
        for _ in range(3):
            await asyncio.sleep(0)
        return len(came)

    before = signal.signal(signal.SIGUSR1, lambda number, _frame: came.append(number))
    try:
        assert portal.run(work()) == 1
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_call_in_a_thread_outlives_the_call_that_drove_it(portal):
    results, begun, finish = [], threading.Event(), threading.Event()

    async def in_thread():
        begun.set()
        await asyncio.to_thread(finish.wait, PATIENCE_SECONDS)
        return await name_of_thread()

    async def until_begun():
        thread.start()
        await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)

    thread = threading.Thread(target=lambda: results.append(portal.run(in_thread())))
    portal.run(until_begun())
    finish.set()
    thread.join(PATIENCE_SECONDS)
    assert results == ["atoll-loop"]


def test_a_call_from_within_another_running_loop_is_handed_over(portal):
    async def in_a_notebook():
        return portal.run(name_of_thread())

    assert asyncio.run(in_a_notebook()) == "atoll-loop"


def test_a_call_with_a_nearly_full_stack_is_handed_over(portal):
    def at_depth(left):
        return at_depth(left - 1) if left else portal.run(name_of_thread())

    frames, frame = 0, sys._getframe()
    while frame is not None:
        frames, frame = frames + 1, frame.f_back
    assert at_depth(sys.getrecursionlimit() - frames - 100) == "atoll-loop"
    assert portal.run(name_of_thread()) == "MainThread"
