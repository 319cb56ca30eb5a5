"""Deadlines and cancellation: code that runs too long is ended, and the sandbox can be used again."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import atoll
from atoll import Capability

SIGNALS = pytest.mark.needs(Capability.SUBPROCESS)
"""A guest that is a process has signals to play with."""


@pytest.fixture
def patient(box):
    """A guest that heeds interrupts gets time to, on a machine full of tests."""
    guest = getattr(box.inner, "_guest", None)  # the daemon's are in its own process
    if guest is None:
        yield box
        return
    usual, guest.session.grace_seconds = guest.session.grace_seconds, 10
    yield box
    guest.session.grace_seconds = usual


WITH_POOL = """
import time
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor() as pool: pool.submit(time.sleep, 60).result()
"""
IN_THREADS = ("import asyncio, time\nasyncio.run(asyncio.to_thread(time.sleep, 60))", WITH_POOL)


@SIGNALS
@pytest.mark.needs(Capability.LIMIT_TIME, Capability.THREADS)
@pytest.mark.parametrize("code", IN_THREADS, ids=["asyncio.run", "pool"])
def test_a_timeout_keeps_the_state_of_a_cell_that_waits_for_threads(patient, code):
    patient.execute("kept = 1")
    result = patient.execute(code, timeout_ms=300)
    assert (result.kind, result.state_lost) == ("timeout", False), result
    assert patient.get_variable("kept") == 1


@pytest.mark.spec("R0.5")
@pytest.mark.needs(Capability.LIMIT_TIME)
@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "n = 0\ntry:\n  for _ in iter(int, 1): n += 1\nexcept Exception: pass",
    ],
)
def test_a_timeout_keeps_the_state(patient, code):
    patient.execute("x = 'kept'")
    result = patient.execute(f"print('partial')\n{code}", timeout_ms=500)
    assert (result.kind, result.exit_code, result.success) == ("timeout", 124, False)
    assert result.error == "TimeoutError: the execution took longer than 500 ms"
    assert result.stdout == "partial\n"
    assert not result.state_lost
    assert patient.execute("x").value == "kept"


@pytest.mark.spec("R0.5")
@pytest.mark.needs(Capability.LIMIT_TIME)
@pytest.mark.parametrize(
    "code",
    [
        pytest.param(
            "n = 0\nwhile True:\n  try:\n    for _ in iter(int, 1): n += 1\n  except BaseException: pass",
            id="swallows",
        ),
        pytest.param(
            "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
            id="ignores",
            marks=SIGNALS,
        ),
        pytest.param("sum(range(10 ** 14))", id="in C"),
        pytest.param(
            "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", id="stopped", marks=SIGNALS
        ),
    ],
)
def test_what_will_not_be_interrupted_is_killed(box, code):
    box.execute("x = 1")
    started = time.monotonic()
    result = box.execute(f"print('partial', flush=True)\n{code}", timeout_ms=500)
    assert (result.kind, result.state_lost, result.stdout) == ("timeout", True, "partial\n")
    assert time.monotonic() - started < 40
    assert box.get_variable("x", "gone") == "gone"
    assert box.execute("6 * 7").value == 42


@pytest.mark.spec("R0.5")
@pytest.mark.needs(Capability.LIMIT_TIME, Capability.IMPORTS)
def test_the_context_is_there_again_after_a_kill(open_box):
    box = open_box(context="c" * 100_000)
    box.execute("import os; os._exit(3)")
    assert box.execute("len(context)").value == 100_000


@pytest.mark.spec("R0.5")
@pytest.mark.needs(Capability.LIMIT_TIME)
def test_a_timeout_during_a_host_call_keeps_the_channel_in_step(open_box):
    release = threading.Event()
    box = open_box(on_llm_query=lambda prompt: (release.wait(20) and "late") or "")
    box.execute("x = 5")
    result = box.execute("llm_query('slow')", timeout_ms=300)
    assert (result.kind, result.state_lost) == ("timeout", False)
    release.set()
    assert box.execute("x, llm_query('next')").value == (5, "late")


@pytest.mark.spec("R0.14")
@pytest.mark.needs(Capability.CANCEL)
def test_cancel_from_another_thread_ends_the_cell_with_keyboard_interrupt(patient):
    patient.execute("x = 'kept'")
    timer = threading.Timer(0.3, patient.cancel)
    timer.start()
    result = patient.execute("while True: pass")
    timer.join()
    assert (result.kind, result.exit_code) == ("cancelled", 130)
    assert result.error_type == "KeyboardInterrupt"
    assert "KeyboardInterrupt" in result.stderr
    assert patient.execute("x").value == "kept"


@pytest.mark.spec("R0.14")
@pytest.mark.needs(Capability.CANCEL)
async def test_cancel_from_another_task(backend):
    async with atoll.aio.create_sandbox(backend=backend) as box:
        cell = asyncio.create_task(box.execute("import time; time.sleep(60)"))
        await asyncio.sleep(0.3)
        await box.cancel()
        assert (await cell).kind == "cancelled"
        assert (await box.execute("1")).value == 1


@pytest.mark.spec("R0.14")
@pytest.mark.needs(Capability.CANCEL)
def test_code_can_clean_up_when_it_is_cancelled(patient):
    threading.Timer(0.3, patient.cancel).start()
    result = patient.execute(
        "n = 0\ntry:\n  for _ in iter(int, 1): n += 1\nfinally:\n  cleaned = True"
    )
    assert result.kind == "cancelled"
    assert patient.get_variable("cleaned") is True


@pytest.mark.parametrize(
    "code",
    [
        "raise KeyboardInterrupt",
        "raise KeyboardInterrupt('by hand')",
        pytest.param("import os, signal; os.kill(os.getpid(), signal.SIGINT)", marks=SIGNALS),
    ],
)
def test_an_interrupt_of_the_cells_own_is_an_error_and_not_a_cancellation(box, code):
    result = box.execute(code)
    assert (result.kind, result.error_type, result.exit_code) == ("error", "KeyboardInterrupt", 130)
    assert not result.state_lost
    assert "KeyboardInterrupt" in result.stderr
    assert box.execute("6 * 7").value == 42


@pytest.mark.spec("R0.14")
def test_cancel_without_a_running_cell_does_nothing(box):
    box.cancel()
    assert box.execute("1").value == 1


@pytest.mark.spec("R0.2", "R0.14")
@pytest.mark.needs(Capability.CANCEL)
async def test_destroy_while_a_cell_runs_ends_it(backend):
    policy = atoll.ExecutionPolicy(fuel_budget=None)
    async with atoll.aio.create_sandbox(backend=backend, policy=policy) as box:
        cell = asyncio.create_task(box.execute("while True: pass"))
        await asyncio.sleep(0.3)
        await box.destroy()
        assert (await cell).kind == "cancelled"


@pytest.mark.spec("R0.5")
async def test_a_cancelled_task_leaves_a_usable_sandbox(backend):
    async with atoll.aio.create_sandbox(backend=backend) as box:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await box.execute("import time; time.sleep(60)")
        assert (await box.execute("40 + 2")).value == 42


STUBBORN = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
begun()
print('late', flush=True)
while True: pass
"""


@SIGNALS
@pytest.mark.parametrize("times", [1, 3])
async def test_a_loss_that_no_result_has_told_is_told_by_the_next(backend, times):
    begun = asyncio.Event()

    async def note() -> None:
        begun.set()

    async with atoll.aio.create_sandbox(backend=backend, tools={"begun": note}) as box:
        await box.execute("kept = 1")
        cell = asyncio.create_task(box.execute(STUBBORN))
        await begun.wait()
        for _ in range(times):
            cell.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await cell
        result = await box.execute("'kept' in globals()")
        assert (result.value, result.stdout, result.state_lost) == (False, "", True)
