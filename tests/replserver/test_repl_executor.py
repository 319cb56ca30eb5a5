"""REPLExecutor: through a server, without one, and when the server is lost."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from replkit import plain, running, wait_for

import atoll
from atoll import Capability, ExecutionPolicy, ExecutionTimeoutError, SandboxConfig
from atoll.config import REPL_VARIABLES, ReplSettings
from atoll.errors import ConfigError, SandboxClosedError, SandboxLostError, SandboxStartError
from atoll.replserver.executor import REPLExecutor, SyncREPLExecutor

PATIENT = ReplSettings(warmup_seconds=60, health_check_seconds=60)
DEAF = "print('>>> READY <<<', flush=True); import time; time.sleep(600)"


def light():
    return SandboxConfig(python=plain())


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def other(request):
    """A program of the test's own in the server's place."""
    process = subprocess.Popen(
        [sys.executable, "-c", request.param], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    yield process
    process.kill()
    process.communicate()


@pytest.mark.spec("R2.3")
@pytest.mark.parametrize("enabled", [True, False], ids=["server", "direct"])
async def test_code_in_and_response_out(enabled):
    async with REPLExecutor(light(), settings=replace(PATIENT, enabled=enabled)) as executor:
        response = await executor.execute("print('é', len('\U0001f600')); 1 / 0")
        assert (response.stdout, response.exit_code) == ("é 1\n", 1)
        assert response.error == "ZeroDivisionError: division by zero"
        assert await executor.health_check()
        assert (executor.server_pid is not None) == enabled


@pytest.mark.spec("R2.8")
async def test_disabled_by_the_environment_there_is_no_server(monkeypatch):
    monkeypatch.setenv("REPL_ENABLED", "false")
    async with REPLExecutor() as executor:
        assert (await executor.execute("print(1)")).stdout == "1\n"
        assert executor.server_pid is None


@pytest.mark.spec("R2.8", "R2.3")
@pytest.mark.needs(Capability.SAVE)
@pytest.mark.parametrize("enabled", [True, False], ids=["server", "direct"])
async def test_state_through_the_executor(backend, enabled):
    settings = replace(PATIENT, enabled=enabled)
    async with REPLExecutor(SandboxConfig(backend=backend), settings=settings) as executor:
        first = await executor.execute("x = 41", capture_state=True)
        second = await executor.execute("print(x + 1)", first.state)
        assert second.stdout == "42\n"


@pytest.mark.spec("R2.11")
@pytest.mark.parametrize("enabled", [True, False], ids=["server", "direct"])
async def test_a_timeout_raises_with_what_was_printed(enabled):
    async with REPLExecutor(light(), settings=replace(PATIENT, enabled=enabled)) as executor:
        with pytest.raises(ExecutionTimeoutError, match="longer than 300 ms") as caught:
            await executor.execute("print('partial')\nwhile True: pass", timeout=0.3)
        assert caught.value.stdout == "partial\n"
        assert (await executor.execute("print(1)")).stdout == "1\n"


async def test_the_configuration_reaches_the_server():
    config = SandboxConfig(
        python=plain(), timeout_ms=400, policy=ExecutionPolicy(memory_bytes=200 << 20)
    )
    async with REPLExecutor(config, settings=PATIENT) as executor:
        with pytest.raises(ExecutionTimeoutError, match="400 ms"):
            await executor.execute("while True: pass")
        response = await executor.execute("x = b'x' * (400 << 20)")
        assert "MemoryError" in response.error


async def test_what_cannot_reach_the_server_is_refused():
    executor = REPLExecutor(SandboxConfig(tools={"f": print}), settings=PATIENT)
    with pytest.raises(ConfigError, match=r"cannot be given tools: .*REPL_ENABLED=false"):
        await executor.execute("f(1)")
    policy = ExecutionPolicy(cpu_seconds=1)
    executor = REPLExecutor(SandboxConfig(policy=policy), settings=PATIENT)
    with pytest.raises(ConfigError, match="cannot be given cpu_seconds"):
        await executor.start()


async def test_a_server_killed_in_the_middle_is_told_and_replaced(token):
    async with REPLExecutor(light(), settings=PATIENT) as executor:
        first = executor.server_pid
        code = f"import subprocess; subprocess.run(['sh', '-c', 'sleep 600; : {token}'])"
        running_cell = asyncio.ensure_future(executor.execute(code))
        assert await asyncio.to_thread(wait_for, lambda: running(token))
        os.kill(first, signal.SIGKILL)
        with pytest.raises(SandboxLostError, match="signal 9") as caught:
            await running_cell
        assert caught.value.retryable
        assert await asyncio.to_thread(wait_for, lambda: not running(token))
        assert (await executor.execute("print('again')")).stdout == "again\n"
        assert executor.server_pid != first


@pytest.mark.long
async def test_a_server_killed_between_two_requests_is_told_and_replaced():
    async with REPLExecutor(light(), settings=PATIENT) as executor:
        os.kill(executor.server_pid, signal.SIGKILL)
        with pytest.raises(SandboxLostError):
            await executor.execute("1")
        assert (await executor.execute("print(1)")).stdout == "1\n"


async def test_a_cancelled_call_ends_its_code_and_the_next_gets_its_own_answer(token):
    async with REPLExecutor(light(), settings=PATIENT) as executor:
        code = f"import subprocess; subprocess.run(['sh', '-c', 'sleep 600; : {token}'])"
        call = asyncio.ensure_future(executor.execute(code))
        assert await asyncio.to_thread(wait_for, lambda: running(token))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await asyncio.to_thread(wait_for, lambda: not running(token))
        assert (await executor.execute("print('mine')")).stdout == "mine\n"


async def test_calls_at_one_time_wait_for_each_other():
    async with REPLExecutor(light(), settings=PATIENT) as executor:
        responses = await asyncio.gather(*(executor.execute(f"print({n})") for n in range(8)))
        assert [one.stdout for one in responses] == [f"{n}\n" for n in range(8)]


@pytest.mark.long
async def test_two_executors_work_side_by_side():
    async with (
        REPLExecutor(light(), settings=PATIENT) as one,
        REPLExecutor(light(), settings=PATIENT) as two,
    ):
        assert one.server_pid != two.server_pid
        endless = asyncio.ensure_future(one.execute("while True: pass", timeout=60))
        for n in range(5):
            assert (await two.execute(f"print({n})")).stdout == f"{n}\n"
        assert not endless.done()
        endless.cancel()
        with pytest.raises(asyncio.CancelledError):
            await endless


@pytest.mark.spec("R2.9")
async def test_a_server_that_is_not_ready_in_time_is_ended(monkeypatch):
    monkeypatch.setenv("REPL_WARMUP_TIMEOUT_SECONDS", "0.01")
    executor = REPLExecutor()
    with pytest.raises(SandboxStartError, match=r"not ready within 0\.01 s"):
        await executor.start()
    assert executor.server_pid is None


async def test_a_server_that_ends_instead_of_being_ready(capfd):
    executor = REPLExecutor(SandboxConfig(python="/no/such/python"), settings=PATIENT)
    with pytest.raises(SandboxStartError, match="exit code 2"):
        await executor.start()
    assert "no Python interpreter" in capfd.readouterr().err


@pytest.mark.spec("R2.9")
@pytest.mark.parametrize("other", [DEAF], indirect=True)
async def test_the_health_check_has_a_limit(other):
    settings = replace(PATIENT, health_check_seconds=0.3)
    executor = REPLExecutor.attach(other.stdout, other.stdin, settings=settings)
    await executor.start()
    started = time.monotonic()
    assert not await executor.health_check()
    assert time.monotonic() - started < 30
    with pytest.raises(SandboxClosedError, match="attach anew"):
        await executor.start()


@pytest.mark.parametrize(
    "other",
    [
        "print('>>> READY <<<\\n>>> RESPONSE_START <<<\\n{}\\n>>> RESPONSE_END <<<', flush=True)\ninput()",
        "print('>>> READY <<<', flush=True); input()",
    ],
    indirect=True,
    ids=["no response", "end"],
)
async def test_a_server_that_does_not_speak_the_protocol(other):
    executor = REPLExecutor.attach(other.stdout, other.stdin)
    with pytest.raises(SandboxLostError, match=r"sent no response|closed its streams"):
        await executor.execute("1")
    await executor.close()


async def test_attached_to_a_server_that_somebody_else_started(program):
    server = program(ready=False)
    executor = REPLExecutor.attach(server.process.stdout, server.process.stdin)
    assert (await executor.execute("print(1)")).stdout == "1\n"
    await executor.close()
    assert server.end() == 0


@pytest.mark.long
async def test_closing_ends_the_server_and_a_call_that_waits(token):
    executor = REPLExecutor(light(), settings=PATIENT)
    await executor.start()
    pid = executor.server_pid
    code = f"import subprocess; subprocess.run(['sh', '-c', 'sleep 600; : {token}'])"
    call = asyncio.ensure_future(executor.execute(code))
    assert await asyncio.to_thread(wait_for, lambda: running(token))
    await executor.close()
    await executor.close()
    with pytest.raises(SandboxLostError):
        await call
    assert not alive(pid)
    assert await asyncio.to_thread(wait_for, lambda: not running(token))
    with pytest.raises(SandboxClosedError):
        await executor.execute("1")


async def test_a_forgotten_executor_takes_its_server_with_it():
    executor = REPLExecutor(light(), settings=PATIENT)
    await executor.start()
    pid = executor.server_pid
    del executor
    gc.collect()
    assert not alive(pid)


@pytest.mark.parametrize("end", ["pass", "import os; os._exit(0)"], ids=["exit", "_exit"])
def test_a_host_that_ends_takes_its_server_with_it(end):
    code = (
        "from atoll import SandboxConfig\n"
        "from atoll.replserver.executor import SyncREPLExecutor\n"
        f"executor = SyncREPLExecutor(SandboxConfig(python={plain()!r})); executor.start()\n"
        f"print(executor.server_pid, flush=True)\n{end}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert wait_for(lambda: not alive(int(done.stdout))), done.stderr


def test_the_blocking_one_has_the_same_methods():
    def methods(kind):
        return {name for name in vars(kind) if not name.startswith("_")} - {"attach"}

    assert methods(SyncREPLExecutor) == methods(REPLExecutor)
    with SyncREPLExecutor(light(), settings=PATIENT) as executor:
        assert executor.execute("print(1)").stdout == "1\n"
        assert executor.health_check()
        with pytest.raises(ExecutionTimeoutError):
            executor.execute("while True: pass", timeout=0.3)
        pid = executor.server_pid
    assert not alive(pid)


@pytest.mark.spec("R2.8", "R2.9", "R2.17")
def test_settings_from_the_environment(monkeypatch):
    for name in REPL_VARIABLES.values():
        monkeypatch.delenv(name, raising=False)
    defaults = ReplSettings(enabled=True, warmup_seconds=15, health_check_seconds=5)
    assert ReplSettings.from_environment() == ReplSettings() == defaults
    described = (Path(__file__).parents[2] / "docs" / "repl-server.md").read_text()
    for name, variable in REPL_VARIABLES.items():
        default = str(getattr(defaults, name)).lower()
        row = next(line for line in described.splitlines() if line.startswith(f"| `{variable}`"))
        assert row.split("|")[2].strip(" `") == default
    monkeypatch.setenv("REPL_ENABLED", "False")
    monkeypatch.setenv("REPL_WARMUP_TIMEOUT_SECONDS", "30")
    monkeypatch.setenv("REPL_HEALTH_CHECK_TIMEOUT_SECONDS", "2.5")
    assert ReplSettings.from_environment() == ReplSettings(
        enabled=False, warmup_seconds=30, health_check_seconds=2.5
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("REPL_ENABLED", "maybe"),
        ("REPL_WARMUP_TIMEOUT_SECONDS", "soon"),
        ("REPL_HEALTH_CHECK_TIMEOUT_SECONDS", "-1"),
    ],
)
def test_a_bad_variable_is_named(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(atoll.ConfigError, match=name):
        ReplSettings.from_environment()
