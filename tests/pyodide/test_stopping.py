"""Interrupts through the shared buffer, and what happens to what does not heed them."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import threading

import pytest
from sharing import shared_boxes

import atoll
from atoll import DirectPyodideSandbox, PyodideSandbox
from atoll.backends.pyodide.launch import parked
from atoll.jail.measure import probe


@pytest.fixture
def box():
    with atoll.create_sandbox(backend="pyodide", timeout_ms=20_000) as box:
        yield box


@pytest.fixture(scope="module")
def kept():
    """One for the tests that need no new one; its model answers when it is told to."""
    answers = threading.Event()
    with shared_boxes.keep("pyodide", on_llm_query=lambda _: str(answers.wait(20))) as box:
        yield box, answers


@pytest.mark.spec("R0.6")
@pytest.mark.parametrize(
    "wait", ["while True: pass", "import time; time.sleep(60)", "llm_query('slow')"]
)
def test_the_guest_sees_a_keyboard_interrupt_at_the_timeout(kept, wait):
    box, answers = kept
    answers.clear()
    code = f"seen = False\ntry:\n  {wait}\nexcept KeyboardInterrupt:\n  seen = True\n  raise"
    box.execute("x = 'kept'")
    result = box.execute(code, timeout_ms=500)
    answers.set()
    assert (result.kind, result.state_lost) == ("timeout", False)
    assert box.execute("x, seen").value == ("kept", True)


@pytest.mark.long
@pytest.mark.spec("R0.6", "R0.14")
async def test_cancel_writes_it_too():
    async with atoll.aio.create_sandbox(backend="pyodide") as box:
        cell = asyncio.create_task(box.execute("x = 1\nwhile True: pass"))
        await asyncio.sleep(0.5)
        await box.cancel()
        result = await cell
        assert (result.kind, result.error_type) == ("cancelled", "KeyboardInterrupt")
        assert (await box.execute("x")).value == 1


def test_an_interrupt_that_comes_late_does_not_hit_the_next_cell(kept):
    box, _ = kept
    for _ in range(5):
        box.execute("while True: pass", timeout_ms=100)
        assert box.execute("sum(range(1000))").value == 499500


@pytest.mark.long
def test_no_interrupt_is_lost_however_often_the_guest_looks(box):
    """Pyodide reads the buffer and then clears it; one that came in between was lost."""
    assert not any(box.execute("while True: pass", timeout_ms=20).state_lost for _ in range(150))


def test_what_cannot_be_interrupted_is_killed_and_replaced(kept):
    box, _ = kept
    box.execute("x = 1")
    result = box.execute("sum(range(10 ** 13))", timeout_ms=300)
    assert (result.kind, result.state_lost) == ("timeout", True)
    assert box.execute("'x' in globals()").value is False
    assert box.execute("6 * 7").value == 42


def test_the_next_sandbox_gets_the_parked_process(box):
    (waiting,), kind = parked.waiting, parked.kind
    with atoll.create_sandbox(backend="pyodide") as other:
        assert other.execute("1").value == 1
        assert parked.count == 1
        assert parked.waiting[0] is not waiting
        assert parked.kind == kind


@pytest.mark.long
def test_a_parked_process_that_has_died_is_not_used(box):
    parked.waiting[0].lease.shutdown(2)
    with atoll.create_sandbox(backend="pyodide") as other:
        assert other.execute("1").value == 1


@pytest.mark.long
def test_another_kind_is_parked_when_it_is_asked_for_again(box):
    kind = parked.kind
    policy = atoll.ExecutionPolicy(memory_bytes=100 << 20)
    for expected in (True, False):
        atoll.create_sandbox(backend="pyodide", policy=policy).destroy()
        assert (parked.kind == kind) is expected
    parked.close()
    assert parked.count == 0


@pytest.mark.long
def test_no_room_for_a_parked_process_is_no_reason_to_fail(box, monkeypatch):
    parked.close()
    start, started = parked._start, []

    def start_one(spec):
        if started:
            raise OSError(errno.EMFILE, "too many open files")
        started.append(start(spec))
        return started[0]

    monkeypatch.setattr(parked, "_start", start_one)
    with atoll.create_sandbox(backend="pyodide") as other:
        assert other.execute("1").value == 1
        assert parked.count == 0


@pytest.fixture
def confined(monkeypatch):
    """A host that allows no jail."""
    report = dataclasses.replace(
        asyncio.run(probe.host()), level=atoll.Isolation.CONFINED, failure="no namespaces"
    )
    monkeypatch.setattr(probe, "_cached", report)


@pytest.mark.parametrize("worker", [True, False], ids=["worker", "direct"])
def test_without_a_jail_it_is_virtual_all_the_same(confined, worker):
    with atoll.create_sandbox(backend="pyodide", use_worker=worker, context="c" * 100_000) as box:
        assert box.isolation is atoll.Isolation.VIRTUAL
        assert box.execute("x = len(context)\nx").value == 100_000
        result = box.execute("while True: pass", timeout_ms=500)
        assert (result.kind, result.state_lost) == ("timeout", not worker)
        assert not box.execute("open('/etc/shadow')").success
    config = atoll.SandboxConfig(backend="pyodide")
    found = asyncio.run(PyodideSandbox.availability(config))
    assert "no jail (no namespaces)" in found.details["around deno"]


def test_a_host_that_can_keep_nothing_in_is_refused(monkeypatch):
    report = dataclasses.replace(
        asyncio.run(probe.host()), level=atoll.Isolation.NONE, failure="old kernel"
    )
    monkeypatch.setattr(probe, "_cached", report)
    with pytest.raises(atoll.BackendUnavailableError, match="old kernel"):
        atoll.create_sandbox(backend="pyodide")
    config = atoll.SandboxConfig(backend="pyodide")
    assert not asyncio.run(PyodideSandbox.availability(config)).usable


@pytest.fixture(scope="module")
def direct():
    with shared_boxes.keep("pyodide", use_worker=False) as box:
        yield box


@pytest.mark.spec("R0.13")
def test_a_worker_is_the_default(kept, direct):
    box, _ = kept
    assert type(box.inner) is PyodideSandbox
    assert type(direct.inner) is DirectPyodideSandbox
    assert atoll.Capability.CANCEL not in direct.capabilities


@pytest.mark.spec("R0.13")
def test_direct_mode_runs_cells_calls_and_streams():
    lines = []
    with atoll.create_sandbox(
        backend="pyodide",
        use_worker=False,
        context="c" * 200_000,
        on_llm_query=str.upper,
        on_stdout=lines.append,
    ) as box:
        assert box.execute("print('line'); x = llm_query('loud'); x, len(context)").value == (
            "LOUD",
            200_000,
        )
        assert lines == ["line"]
        blob = box.save()
    with atoll.create_sandbox(backend="pyodide", use_worker=False, state=blob) as box:
        assert box.execute("x").value == "LOUD"


@pytest.mark.long
@pytest.mark.spec("R0.13")
async def test_cancel_does_nothing_in_direct_mode():
    async with atoll.aio.create_sandbox(backend="pyodide", use_worker=False) as box:
        cell = asyncio.create_task(box.execute("import time; time.sleep(1); 'done'"))
        await asyncio.sleep(0.3)
        await box.cancel()
        assert (await cell).value == "done"


@pytest.mark.spec("R0.13")
def test_a_timeout_ends_the_process_in_direct_mode(direct):
    direct.execute("x = 1")
    result = direct.execute("print('partial')\nimport time; time.sleep(60)", timeout_ms=300)
    assert (result.kind, result.state_lost, result.stdout) == ("timeout", True, "partial\n")
    assert direct.execute("'x' in globals()").value is False


@pytest.mark.long
@pytest.mark.spec("R0.13")
async def test_destroy_ends_a_running_cell_in_direct_mode():
    async with atoll.aio.create_sandbox(backend="pyodide", use_worker=False) as box:
        cell = asyncio.create_task(box.execute("while True: pass"))
        await asyncio.sleep(0.3)
        await box.destroy()
        assert (await cell).state_lost


@pytest.mark.spec("R0.13")
@pytest.mark.parametrize("code", ["import js", "import pyodide_js", "open('/etc/shadow')"])
def test_direct_mode_gives_the_guest_no_more(direct, code):
    assert not direct.execute(code).success


@pytest.mark.long
@pytest.mark.spec("R3.11")
async def test_a_search_without_end_is_stopped_and_variables_stay():
    async with atoll.aio.create_sandbox(backend="pyodide", timeout_ms=3000) as box:
        await box.execute("kept = 1")
        await box.files.write("a.txt", "a" * 60 + "b")
        with pytest.raises(atoll.SandboxError, match=r"did not finish grep: .*3000 ms"):
            await box.files.grep("(a+)+$", regex=True)
        assert (await box.execute("kept")).value == 1
