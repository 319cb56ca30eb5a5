"""What clients share is shared fairly: no owner waits for another, and nothing is counted twice."""

from __future__ import annotations

import asyncio
import threading

import pytest

from atoll.concurrency.shares import OWNER, FairShare, FairThreads, acting_for


def started(share):
    found = []
    while (one := share.pop()) is not None:
        found.append(one)
    return found


def test_an_owner_that_runs_nothing_starts_at_once():
    share = FairShare(2, reserve=2)
    for number in range(5):
        share.push("greedy", number)
    assert len(started(share)) == 2
    share.push("modest", "x")
    assert started(share) == [("modest", "x")]
    assert share.running == 3


def test_the_reserve_is_bounded():
    share = FairShare(1, reserve=2)
    for number in range(10):
        share.push(f"owner {number}", number)
    assert len(started(share)) == 3
    assert share.waiting == 7


def test_places_that_become_free_go_to_the_owner_with_the_fewest():
    share = FairShare(4, reserve=1)
    for number in range(8):
        share.push("a", number)
    started(share)
    for number in range(8):
        share.push("b", number)
    order = [owner for owner, _ in started(share)]
    for _ in range(3):
        share.leave("a")
        order += [owner for owner, _ in started(share)]
    assert order == ["b", "b", "a"]  # 4 and 1 run at first: one more than there are places


def test_owners_with_equally_many_take_turns():
    share = FairShare(1)
    for owner in "aab":
        share.push(owner, owner)
    order = []
    while (one := share.pop()) is not None:
        order.append(one[0])
        share.leave(one[0])
    assert order == ["a", "b", "a"]


def test_one_owner_has_at_most_its_share():
    share = FairShare(10, most_of_one=3)
    for number in range(8):
        share.push("a", number)
    assert len(started(share)) == 3
    share.leave("a")
    assert started(share) == [("a", 3)]


def test_work_that_is_taken_back_is_not_counted():
    share = FairShare(1)
    share.push("a", 1)
    started(share)
    share.push("a", 2)
    share.remove("a", 2)
    share.remove("a", 2)
    share.remove("b", 2)
    assert (share.waiting, share.owners_waiting) == (0, 0)


async def test_blocked_threads_of_one_owner_do_not_delay_another():
    loop, release = asyncio.get_running_loop(), threading.Event()
    threads = FairThreads(2, 2, 4)
    loop.set_default_executor(threads)
    try:
        with acting_for("greedy"):
            blocked = [asyncio.create_task(asyncio.to_thread(release.wait, 60)) for _ in range(20)]
        await asyncio.sleep(0)
        with acting_for("modest"):
            assert await asyncio.wait_for(asyncio.to_thread(OWNER.get), 30) == "modest"
            found = await asyncio.wait_for(loop.getaddrinfo("127.0.0.1", 80), 30)
        assert found
        assert threads.waiting_of("greedy") == 18
        release.set()
        assert all(await asyncio.gather(*blocked))
        assert threads.waiting_of("greedy") == 0
    finally:
        release.set()


async def test_a_job_whose_caller_has_gone_never_runs():
    loop, release = asyncio.get_running_loop(), threading.Event()
    threads = FairThreads(1, 1, 0)
    ran = []
    first = loop.run_in_executor(threads, release.wait, 60)
    second = loop.run_in_executor(threads, ran.append, 1)
    second.cancel()
    await asyncio.sleep(0)
    assert threads.waiting_of("") == 0
    release.set()
    await first
    await loop.run_in_executor(threads, ran.append, 2)
    assert ran == [2]
    threads.shutdown()


def test_a_shutdown_does_what_waits():
    threads, release = FairThreads(1, 1, 0), threading.Event()
    first, second = threads.submit(release.wait, 60), threads.submit(str, 5)
    release.set()
    threads.shutdown()
    assert (first.result(0), second.result(0)) == (True, "5")
    with pytest.raises(RuntimeError, match="shut down"):
        threads.submit(str, 6)


def test_a_shutdown_can_cancel_what_waits():
    threads, release = FairThreads(1, 1, 0), threading.Event()
    first, second = threads.submit(release.wait, 60), threads.submit(str, 5)
    threads.shutdown(wait=False, cancel_futures=True)
    assert second.cancelled()
    release.set()
    assert first.result(30)


def test_a_fault_is_raised_where_the_result_is_awaited():
    with FairThreads(1, 1, 0) as threads, pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 / 0).result(30)
