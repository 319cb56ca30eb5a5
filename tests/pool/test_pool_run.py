"""`Pool.run`: one fresh sandbox for one piece of code, in one exchange."""

from __future__ import annotations

import asyncio

import pytest
from poolkit import until

from atoll import ExecutionPolicy, SandboxConfig
from atoll.errors import ConfigError, SandboxLostError, SandboxStartError
from atoll.hosting.pool import pool as pools
from atoll.launch import handshake
from atoll.sandbox.base import check_options
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


@pytest.mark.parametrize("given", ["two\nlines\n", b"two\nlines\n"])
async def test_standard_input_is_on_descriptor_0_for_code_and_its_children(pool, given):
    code = "import subprocess; print(input(), subprocess.run(['cat'], capture_output=True).stdout)"
    result = await pool.run(f"import os; print(os.read(0, 4)); {code}", BARE, stdin=given)
    assert result.stdout == "b'two\\n'\nlines b''\n"


async def test_a_cell_after_one_with_input_has_none(pool):
    async with await pool.open(BARE) as box:
        assert (await box.execute("x = input()", stdin="a")).success
        result = await box.execute("import os; print(x, os.read(0, 1))\ninput()")
    assert result.stdout == "a b''\n"
    assert "no keyboard" in result.error


async def test_a_script_has_nothing_of_a_session(pool):
    names = (
        "[n for n in ('context', 'llm_query', 'np', 'display') if n in dir() + dir(__builtins__)]"
    )
    code = f"print(__name__, {names}, input.__module__)\nraise SystemExit(3)"
    result = await pool.run(code, BARE, script=True)
    assert (result.stdout, result.exit_code) == ("__main__ [] builtins\n", 3)


async def test_other_backends_refuse_options_they_do_not_take(pool):
    with pytest.raises(
        ConfigError, match="stdin is an option of the backend 'native' and 'gvisor'"
    ):
        check_options("wasm", {"stdin": "x"})
