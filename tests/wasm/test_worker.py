"""The worker: what it lets through of a hostile guest, how it interrupts, what it leaves."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

import atoll
from atoll import ExecutionPolicy
from atoll.backends.wasm.counters import Counters, Ending, Reading
from atoll.backends.wasm.memory import Cells, LinearMemory, UnknownLayoutError
from atoll.jail.supervisor.client import supervisor

FREE = ExecutionPolicy(fuel_budget=None)
IMPORTS = "import sys\nwit = next(m for n, m in sys.modules.items() if n == 'wit_world')\n"


@pytest.fixture
def box():
    with atoll.create_sandbox(backend="wasm", policy=FREE, on_llm_query=lambda p: p) as one:
        yield one


@pytest.mark.spec("R0.14")
@pytest.mark.parametrize(
    "code", ["while True: pass", "import time; time.sleep(60)", "llm_query('wait')"]
)
def test_cancel_keeps_the_state_wherever_the_guest_is(code):
    asked = threading.Event()

    def slow(_prompt):
        asked.wait(20)

    with atoll.create_sandbox(backend="wasm", policy=FREE, on_llm_query=slow) as box:
        box.execute("kept = 41")
        timer = threading.Timer(0.3, box.cancel)
        timer.start()
        result = box.execute(code)
        asked.set()
        assert (result.kind, result.state_lost) == ("cancelled", False)
        assert result.error.startswith("KeyboardInterrupt")
        assert box.execute("kept + 1").value == 42


def test_an_interrupt_at_any_moment_harms_nothing(box):
    """Cells of about the length of the deadline: it comes before, in and after their end."""
    box.execute("n = 0")
    for length in range(30):
        box.execute(f"for _ in range({length} * 1500): n += 1", timeout_ms=8)
    assert box.execute("'alive', n > 0").value == ("alive", True)


def test_what_a_guest_catches_it_has_caught(box):
    code = "try:\n    while True: pass\nexcept KeyboardInterrupt:\n    print('caught')\n'went on'"
    result = box.execute(code, timeout_ms=200)
    assert (result.kind, result.stdout, result.value) == ("ok", "caught\n", "went on")


@pytest.mark.parametrize(
    "call",
    [
        "wit.call('no json')",
        'wit.call(\'{"jsonrpc": "2.0", "id": "x", "result": 1}\')',
        "wit.call('{}\\n{}')",
        "wit.call('[' * 100_000)",
        "wit.call('\\u00e9')",
        "wit.emit(1, '\\u0100')",
        "wit.take(2 ** 31)",
        "wit.put('x')",
    ],
)
def test_calls_of_no_shape_end_the_guest_alone(box, call):
    result = box.execute(IMPORTS + call)
    assert result.kind in ("crashed", "broken", "exited"), result
    assert result.state_lost
    assert box.execute("6 * 7").value == 42


@pytest.mark.parametrize("address", [0, 2**32 - 1, 2**31])
def test_a_guest_cannot_have_memory_filled_that_is_not_its_own(box, address):
    box.execute(IMPORTS + f"wit.fill({address}, 2 ** 31)")
    assert box.execute("6 * 7").value == 42


def test_a_guest_that_shuts_the_gate_is_killed(box):
    result = box.execute(IMPORTS + "wit.gate(False)\nwhile True: pass", timeout_ms=200)
    assert (result.kind, result.state_lost) == ("timeout", True)
    assert box.execute("6 * 7").value == 42


def test_no_write_leaves_the_guests_memory(tmp_path):
    """The worker believes nothing of what it reads there."""
    memory = LinearMemory.__new__(LinearMemory)
    memory._start, memory._end = 0x1000, 0x2000
    for cells in (Cells(0x1000, 0, 0), Cells(0, 0xFFE, 0), Cells(-4, 0, 0)):
        with pytest.raises(UnknownLayoutError):
            memory._check(max(cells.breaker, cells.exception) if cells.breaker >= 0 else -4)
    with pytest.raises(UnknownLayoutError):
        LinearMemory(str(tmp_path / "nothing"))


def test_counters_are_read_after_the_worker_is_dead():
    counters = Counters.create()
    other = Counters(os.dup(counters.fd))
    other.write(Reading(2**60, Ending.FUEL))
    other.close()
    assert counters.read() == (2**60, Ending.FUEL)
    counters.close()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_nothing_is_left_of_many_sandboxes():
    """A thousand take a minute; a tenth shows a leak as well, of descriptors and of memory."""
    for _ in range(10):
        atoll.run_untrusted_python("print(1)")
    before, memory = _descriptors(), _resident("self")
    started = time.monotonic()
    for _ in range(100):
        assert atoll.run_untrusted_python("x = bytearray(1 << 20)").success
    assert time.monotonic() - started < 200
    assert _descriptors() <= before + 4
    assert _resident("self") - memory < 8 << 20
    assert _resident(str(supervisor.pid)) < 64 << 20


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _resident(pid: str) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
