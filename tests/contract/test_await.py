"""`await` outside functions: one event loop for the session, that runs while a cell awaits."""

from __future__ import annotations

import threading

import pytest

from atoll import Capability

pytestmark = pytest.mark.needs(Capability.IMPORTS)


@pytest.fixture
def patient(box):
    """A guest that heeds interrupts gets time to, on a machine full of tests."""
    guest = getattr(box.inner, "_guest", None)
    if guest is None:
        yield box
        return
    usual, guest.session.grace_seconds = guest.session.grace_seconds, 10
    yield box
    guest.session.grace_seconds = usual


@pytest.mark.spec("R0.3")
def test_a_cell_may_await_and_its_last_expression_has_a_value(box):
    assert box.execute("import asyncio\nawait asyncio.sleep(0, 'value')").value == "value"
    code = (
        "async def numbers():\n    for n in range(3):\n        yield n\n"
        "class Door:\n"
        "    async def __aenter__(self): return 'open'\n"
        "    async def __aexit__(self, *exc): print('shut')\n"
        "found = []\n"
        "async for n in numbers(): found.append(n)\n"
        "async with Door() as door: found.append(door)\n"
        "found + [n async for n in numbers()]"
    )
    result = box.execute(code)
    assert result.value == [0, 1, 2, "open", 0, 1, 2]
    assert result.stdout == "shut\n"


@pytest.mark.spec("R0.3")
def test_tasks_and_locks_live_on_from_cell_to_cell(box):
    box.execute(
        "import asyncio\nlock = asyncio.Lock()\nqueue = asyncio.Queue()\n"
        "async def worker():\n    async with lock:\n        return await queue.get()\n"
        "task = asyncio.create_task(worker())\nawait asyncio.sleep(0)"
    )
    assert box.execute("task.done(), lock.locked()").value == (False, True)
    assert box.execute("await queue.put(5)\nawait task").value == 5


def test_asyncio_run_works_in_a_cell_that_does_not_await(box):
    box.execute("import asyncio\nawait asyncio.sleep(0)\nasync def f(): return 3")
    assert box.execute("asyncio.run(f())").value == 3
    assert box.execute("await f()").value == 3


def test_an_exception_of_an_awaited_function_shows_the_cells_lines_alone(box):
    result = box.execute("async def f():\n    raise ValueError('inside')\n\nawait f()")
    assert (result.error, result.error_type) == ("ValueError: inside", "ValueError")
    lines = [line for line in result.stderr.splitlines() if line.startswith("  File")]
    assert [line.partition(", ")[2] for line in lines] == ["line 4, in <module>", "line 2, in f"]


@pytest.mark.spec("R1.6")
@pytest.mark.parametrize(
    ("code", "valid"),
    [
        ("await f()", True),
        ("async for x in f(): pass", True),
        ("[x async for x in f()]", True),
        ("def g():\n    await f()", False),
        ("await", False),
        ("await f()\nreturn 1", False),
    ],
)
def test_validation_accepts_what_runs(box, code, valid):
    assert box.validate_code(code) is valid


@pytest.mark.spec("R0.5")
@pytest.mark.needs(Capability.LIMIT_TIME)
@pytest.mark.parametrize("waits", ["asyncio.sleep(60)", "asyncio.Event().wait()"])
def test_a_timeout_while_awaiting_cleans_up_and_keeps_the_state(patient, waits):
    patient.execute("import asyncio\nx = 'kept'\nawait asyncio.sleep(0)")
    code = f"try:\n    await {waits}\nfinally:\n    print('cleaned up')"
    result = patient.execute(code, timeout_ms=500)
    assert (result.kind, result.stdout) == ("timeout", "cleaned up\n")
    assert not result.state_lost
    assert "KeyboardInterrupt" in result.stderr
    assert patient.execute("await asyncio.sleep(0, x)").value == "kept"


@pytest.mark.needs(Capability.LIMIT_TIME)
def test_a_task_that_will_not_be_cancelled_does_not_hold_the_cell(patient):
    patient.execute("import asyncio\nx = 'kept'")
    code = (
        "async def stubborn():\n    while True:\n"
        "        try: await asyncio.sleep(60)\n        except asyncio.CancelledError: pass\n"
        "await stubborn()"
    )
    result = patient.execute(code, timeout_ms=500)
    assert (result.kind, result.state_lost) == ("timeout", False)
    assert patient.execute("await asyncio.sleep(0, x)").value == "kept"


@pytest.mark.spec("R0.14")
@pytest.mark.needs(Capability.CANCEL)
def test_cancel_ends_a_cell_that_awaits(open_box):
    started = threading.Event()
    box = open_box(on_stdout=lambda line: started.set())
    results = []
    code = "import asyncio\nprint('started', flush=True)\nawait asyncio.sleep(60)"
    thread = threading.Thread(target=lambda: results.append(box.execute(code)))
    thread.start()
    assert started.wait(20)
    box.cancel()
    thread.join(20)
    assert results[0].kind == "cancelled"


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param("asyncio.get_event_loop_policy().get_event_loop().close()", id="closed"),
        pytest.param("asyncio.set_event_loop(None)", id="unset"),
        pytest.param("asyncio.sleep = None; del asyncio.create_task", id="patched"),
    ],
)
def test_a_loop_that_guest_code_has_broken_is_made_anew(open_box, harm):
    box = open_box()
    box.execute(
        "import asyncio, warnings\nwarnings.simplefilter('ignore')\nasync def f(): return 4"
    )
    assert box.execute("await f()").value == 4
    box.execute(harm)
    assert box.execute("await f()").value == 4


@pytest.mark.needs(Capability.SUBPROCESS)
def test_a_loop_whose_descriptors_were_closed_is_made_anew(box):
    box.execute("import asyncio, os\nasync def f(): return 4\nawait f()")
    box.execute("os.closerange(3, 20)")
    assert box.execute("await f()").value == 4


@pytest.mark.needs(Capability.SUBPROCESS)
def test_programs_and_threads_are_awaited(box):
    code = (
        "import asyncio\n"
        "program = await asyncio.create_subprocess_exec('echo', 'out', stdout=-1)\n"
        "(await program.communicate())[0], await asyncio.to_thread(sum, [1, 2])"
    )
    assert box.execute(code).value == (b"out\n", 3)


@pytest.mark.needs(Capability.FORK)
def test_clones_have_loops_of_their_own(box):
    box.execute(
        "import asyncio\nqueue = asyncio.Queue()\n"
        "async def worker():\n    return await queue.get()\n"
        "task = asyncio.create_task(worker())\n"
        "first, second = await asyncio.to_thread(str), asyncio.Event()"
    )
    mark = box.checkpoint()
    twin = box.fork()
    try:
        for one, word in ((twin, "twin"), (box, "parent")):
            assert one.execute(f"await queue.put({word!r})\nawait task").value == word
        threads = "await asyncio.gather(*(asyncio.to_thread(len, 'ab') for _ in range(4)))"
        assert [one.execute(threads).value for one in (box, twin)] == [[2] * 4] * 2
        box.rollback(mark)
        assert box.execute("await queue.put('again')\nawait task").value == "again"
    finally:
        twin.destroy()


@pytest.mark.needs(Capability.FORK)
def test_a_clone_does_not_take_files_off_its_parents_loop(box):
    box.execute(
        "import asyncio, os\n"
        "reading, writing = os.pipe()\nseen = []\n"
        "async def watch():\n"
        "    asyncio.get_running_loop().add_reader(reading, lambda: seen.append(os.read(reading, 9)))\n"
        "await watch()"
    )
    twin = box.fork()
    try:
        stop = "async def stop(): asyncio.get_running_loop().remove_reader(reading)\nawait stop()"
        assert twin.execute(stop).error is None
        box.execute("os.write(writing, b'data')\nfor _ in range(9): await asyncio.sleep(0.01)")
        assert box.get_variable("seen") == [b"data"]
    finally:
        twin.destroy()


@pytest.mark.spec("R4.1")
def test_a_guard_reads_cells_that_await(open_box):
    box = open_box(guard="ast")
    assert box.execute("async def f(): return 2\nawait f()").value == 2
    result = box.execute("async def f(): return 2\nawait f().cr_frame")
    assert result.kind == "refused"
