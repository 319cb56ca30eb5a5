"""Executions take turns: first come, first served; too many are told at once."""

from __future__ import annotations

import asyncio

import pytest

import atoll
from atoll.daemon.gate import CancelledInQueueError, Gate, Waiter


async def test_the_queue_is_served_in_order():
    gate, order = Gate(1, 100), []

    async def work(number):
        async with gate.slot():
            order.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*(work(number) for number in range(20)))
    assert order == list(range(20))
    assert (gate.running, gate.waiting) == (0, 0)


async def test_past_the_bound_nobody_waits():
    gate = Gate(1, 1)
    async with gate.slot():
        second = asyncio.create_task(gate.slot().__aenter__())
        await asyncio.sleep(0)
        with pytest.raises(atoll.BusyError, match="1 executions run and 1 wait") as caught:
            await gate.slot().__aenter__()
        assert caught.value.retryable
    slot = await second
    slot.release()
    assert gate.running == 0


@pytest.mark.parametrize("turn_came", [False, True])
async def test_one_that_goes_while_it_waits_leaves_no_hole(turn_came):
    gate = Gate(1, 5)
    first = gate.slot()
    await first.__aenter__()
    second = asyncio.create_task(gate.slot().__aenter__())
    await asyncio.sleep(0)
    if turn_came:
        await first.__aexit__(None, None, None)
    second.cancel()
    await asyncio.wait({second})
    if not turn_came:
        await first.__aexit__(None, None, None)
    async with gate.slot():
        assert gate.running == 1
    assert (gate.running, gate.waiting) == (0, 0)


async def test_one_that_waits_for_its_client_makes_room():
    gate = Gate(1, 5)
    async with gate.slot() as outer:
        with outer.aside(), outer.aside():
            async with gate.slot():
                assert gate.running == 1
        assert gate.running == 1
    assert gate.running == 0


async def test_calls_that_outlive_their_execution_do_not_count():
    gate = Gate(2, 5)
    async with gate.slot() as slot:
        call = slot.aside()
        call.__enter__()
    call.__exit__(None, None, None)
    assert gate.running == 0


async def test_one_that_is_told_to_wait_no_longer_never_runs():
    gate, waiter = Gate(1, 5), Waiter()
    waiter.cancel()
    async with gate.slot():
        waiting = asyncio.create_task(gate.slot(waiter).__aenter__())
        await asyncio.sleep(0)
        waiter.cancel()
        waiter.cancel()
        with pytest.raises(CancelledInQueueError):
            await waiting
        assert gate.waiting == 0
    assert gate.running == 0
