"""`Pool.run`: one fresh sandbox for one piece of code, in one exchange."""

from __future__ import annotations

import asyncio

import pytest
from poolkit import until

from atoll import ExecutionPolicy, SandboxConfig
from atoll.errors import SandboxLostError, SandboxStartError
from atoll.hosting.pool import pool as pools
from atoll.launch import handshake
from atoll.sandbox.channel import ChannelEndedError
from atoll.types import EndReport, Outcome

BARE = SandboxConfig(preload="bare", timeout_ms=20_000)


async def test_the_handshake_is_sent_along_with_the_code(pool):
    """Environment, context and tools are there when the code runs."""
    config = SandboxConfig(
        preload="bare",
        policy=ExecutionPolicy(env={"WHO": "me"}),
        context="a text",
        tools={"add": lambda a, b: a + b},
    )
    result = await pool.run("import os; print(os.environ['WHO'], context, add(1, 2))", config)
    assert (result.stdout, result.kind) == ("me a text 3\n", Outcome.OK)


async def test_runs_share_nothing_and_more_run_than_are_ended_at_once(pool):
    results = await asyncio.gather(
        *(pool.run(f"print({n}, 'x' in globals()); x = 1", BARE) for n in range(12))
    )
    assert [one.stdout for one in results] == [f"{n} False\n" for n in range(12)]
    assert len(pool._ending) <= pools.MAX_ENDING + len(results)
    await until(lambda: not pool._ending)


async def test_a_timeout_is_a_result(pool):
    result = await pool.run("while True: pass", BARE, timeout_ms=200)
    assert result.kind is Outcome.TIMEOUT


async def test_a_cancelled_run_ends_its_guest(pool):
    await pool.warm("bare")
    running = asyncio.ensure_future(pool.run("import time; time.sleep(60)", BARE))
    await asyncio.sleep(0.3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: not pool._ending)


async def test_a_refused_handshake_is_a_failed_start_though_the_code_was_sent(pool, monkeypatch):
    refused = {"tools": "no list", "memory_bytes": None, "private_folder": True}
    monkeypatch.setattr("atoll.launch.handshake._parameters", lambda *_: refused)
    with pytest.raises(SandboxStartError, match="guest"):
        await pool.run("print(1)", BARE)


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (EndReport(signal=9), "the guest's process was ended by signal 9 (SIGKILL)"),
        (EndReport(exit=3), "the guest's process ended itself with exit code 3"),
        (EndReport(), "the guest's process has ended for an unknown reason"),
    ],
)
async def test_a_guest_that_dies_during_the_handshake_is_told_in_words(report, words):
    class DeadGuest:
        async def end_report(self):
            return report

    error = await handshake._lost(DeadGuest(), ChannelEndedError())
    assert words in str(error)
    # One that another process has killed is replaced: it did nothing wrong.
    assert isinstance(error, SandboxStartError if report.exit else SandboxLostError)
