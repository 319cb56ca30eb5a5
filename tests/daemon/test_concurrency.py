"""Executions take turns: first come, first served; too many are told at once."""

from __future__ import annotations

import asyncio

import pytest

import atoll
from atoll.concurrency.shares import CancelledInQueueError, ConcurrencyLimit, Waiter, acting_for


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
    await slot.__aexit__()
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


async def test_an_owner_of_which_nothing_runs_waits_for_no_other():
    limit = ConcurrencyLimit(2, 10)
    with acting_for("greedy"):
        held = [limit.slot() for _ in range(2)]
        for one in held:
            await one.__aenter__()
        waiting = asyncio.create_task(limit.slot().__aenter__())
    await asyncio.sleep(0)
    with acting_for("modest"):
        places: list[int] = []
        async with limit.slot(None, places.append):
            assert (limit.running, limit.waiting) == (3, 1)
            assert places == []
            second = asyncio.create_task(limit.slot(None, places.append).__aenter__())
            await asyncio.sleep(0)
            assert places == [1], "its place among its own, whoever else waits"
            second.cancel()
            await asyncio.wait({second})
    assert limit.waiting == 1
    for one in held:
        await one.__aexit__()
    await (await waiting).__aexit__()
    assert limit.running == 0


async def test_a_full_queue_still_takes_owners_that_have_less_than_their_share():
    limit = ConcurrencyLimit(1, 4)
    slots = []

    async def wait(owner):
        with acting_for(owner):
            slots.append(asyncio.create_task(limit.slot().__aenter__()))
        await asyncio.sleep(0)

    for _ in range(5):
        await wait("greedy")
    await wait("modest")  # runs at once: nothing of it does
    await wait("modest")
    await wait("modest")
    assert limit.waiting == 6
    for owner in ("greedy", "modest"):
        await wait(owner)
        with pytest.raises(atoll.BusyError):
            slots[-1].result()
    for _ in range(8):
        done = [one for one in slots if one.done() and one.exception() is None]
        await done[0].result().__aexit__()
        slots.remove(done[0])
        await asyncio.sleep(0)
    assert (limit.running, limit.waiting) == (0, 0)
