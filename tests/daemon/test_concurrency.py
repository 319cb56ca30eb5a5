"""Executions take turns: first come, first served; too many are told at once."""

from __future__ import annotations

import asyncio

import pytest

import atoll
from atoll.daemon.concurrency import CancelledInQueueError, ConcurrencyLimit, Waiter


async def test_the_queue_is_served_in_order():
    limit, order = ConcurrencyLimit(1, 100), []

    async def work(number):
        async with limit.slot():
            order.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*(work(number) for number in range(20)))
    assert order == list(range(20))
    assert (limit.running, limit.waiting) == (0, 0)


async def test_past_the_bound_nobody_waits():
    limit = ConcurrencyLimit(1, 1)
    async with limit.slot():
        second = asyncio.create_task(limit.slot().__aenter__())
        await asyncio.sleep(0)
        with pytest.raises(atoll.BusyError, match="1 executions run and 1 wait") as caught:
            await limit.slot().__aenter__()
        assert caught.value.retryable
    slot = await second
    slot.release()
    assert limit.running == 0


@pytest.mark.parametrize("turn_came", [False, True])
async def test_one_that_goes_while_it_waits_leaves_no_hole(turn_came):
    limit = ConcurrencyLimit(1, 5)
    first = limit.slot()
    await first.__aenter__()
    second = asyncio.create_task(limit.slot().__aenter__())
    await asyncio.sleep(0)
    if turn_came:
        await first.__aexit__(None, None, None)
    second.cancel()
    await asyncio.wait({second})
    if not turn_came:
        await first.__aexit__(None, None, None)
    async with limit.slot():
        assert limit.running == 1
    assert (limit.running, limit.waiting) == (0, 0)


async def test_one_that_waits_for_its_client_makes_room():
    limit = ConcurrencyLimit(1, 5)
    async with limit.slot() as outer:
        with outer.aside(), outer.aside():
            async with limit.slot():
                assert limit.running == 1
        assert limit.running == 1
    assert limit.running == 0


async def test_calls_that_outlive_their_execution_do_not_count():
    limit = ConcurrencyLimit(2, 5)
    async with limit.slot() as slot:
        call = slot.aside()
        call.__enter__()
    call.__exit__(None, None, None)
    assert limit.running == 0


async def test_one_that_is_told_to_wait_no_longer_never_runs():
    limit, waiter = ConcurrencyLimit(1, 5), Waiter()
    waiter.cancel()
    async with limit.slot():
        waiting = asyncio.create_task(limit.slot(waiter).__aenter__())
        await asyncio.sleep(0)
        waiter.cancel()
        waiter.cancel()
        with pytest.raises(CancelledInQueueError):
            await waiting
        assert limit.waiting == 0
    assert limit.running == 0
