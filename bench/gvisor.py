"""Rows about gVisor beside native: starts, a cell, CPU time, files, memory."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

import atoll
from atoll.backends.gvisor import runsc
from atoll.backends.gvisor.sandbox import parked
from atoll.jail.supervisor.client import supervisor
from bench.processes import descendants
from bench.rows import Arms, UnavailableError, needs, row, timed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.rows import Probe, Scale

LOOP = "sum(range(3_000_000))"
FILES = "for _ in range(500): open('/app/x', 'w').close()"
READY_SECONDS = 60.0


@row(what="gvisor: cold start, print('hi')", against="native", rounds=10)
def gvisor_start(_scale: Scale) -> Iterator[Arms]:
    _needs_runsc()
    yield Arms(ours=_cold, theirs=timed(lambda: _say_hi("native")))


@row(what="gvisor: cold start, CPU time of the jail", against="native", rounds=5)
def gvisor_start_cpu(_scale: Scale) -> Iterator[Arms]:
    _needs_runsc()
    yield Arms(ours=lambda: _jail_cpu("gvisor"), theirs=lambda: _jail_cpu("native"))


@row(what="gvisor: import numpy and pandas, CPU time", against="native", rounds=3)
def gvisor_import(_scale: Scale) -> Iterator[Arms]:
    _needs_runsc()
    needs("numpy", "pandas", extra="data")
    yield Arms(ours=lambda: _import_cpu("gvisor"), theirs=lambda: _import_cpu("native"))


@row(what="gvisor: start out of a container that waits, print('hi')", against="native", rounds=10)
def gvisor_warm(_scale: Scale) -> Iterator[Arms]:
    _needs_runsc()
    _say_hi("gvisor")
    yield Arms(ours=_warm, theirs=timed(lambda: _say_hi("native")))
    parked.close()


@row(what="gvisor: execute x = 1 in a live session", against="native", rounds=100)
def gvisor_execute(_scale: Scale) -> Iterator[Arms]:
    yield from _sessions(lambda box: timed(lambda: box.execute("x = 1")))


@row(what="gvisor: a loop, CPU time", against="native", rounds=10)
def gvisor_cpu(_scale: Scale) -> Iterator[Arms]:
    yield from _sessions(lambda box: lambda: _cpu_seconds(box, LOOP))


@row(what="gvisor: open and close 500 files, CPU time", against="native", rounds=10)
def gvisor_files(_scale: Scale) -> Iterator[Arms]:
    yield from _sessions(lambda box: lambda: _cpu_seconds(box, FILES))


@row(what="gvisor: memory of a session", against="native", rounds=3, unit="bytes")
def gvisor_memory(_scale: Scale) -> Iterator[Arms]:
    _needs_runsc()
    yield Arms(ours=lambda: _memory("gvisor"), theirs=lambda: _memory("native"))


def _needs_runsc() -> None:
    try:
        runsc.find()
    except atoll.AtollError as exc:
        raise UnavailableError(str(exc)) from None


def _sessions(probe: Callable[[atoll.SyncSandbox], Probe]) -> Iterator[Arms]:
    _needs_runsc()
    with atoll.create_sandbox(backend="gvisor") as ours:
        parked.close()
        with atoll.create_sandbox(backend="native") as theirs:
            yield Arms(ours=probe(ours), theirs=probe(theirs))


def _say_hi(backend: str) -> None:
    with atoll.create_sandbox(backend=backend) as box:
        assert box.execute("print('hi')").success


def _cold() -> float:
    parked.close()
    started = time.perf_counter()
    with atoll.create_sandbox(backend="gvisor") as box:
        assert box.execute("print('hi')").success
        took = time.perf_counter() - started
        parked.close()
    return took


def _warm() -> float:
    """Wait, unmeasured, until a parked container has started."""
    end = time.monotonic() + READY_SECONDS
    while not (parked.waiting and parked.waiting[0].ready) and time.monotonic() < end:
        time.sleep(0.02)
    started = time.perf_counter()
    with atoll.create_sandbox(backend="gvisor") as box:
        assert box.execute("print('hi')").success
        return time.perf_counter() - started


def _jail_cpu(backend: str) -> float:
    """Return the CPU time of a jail's control group from its start to the first answer."""
    parked.close()
    with atoll.create_sandbox(backend=backend) as box:
        assert box.execute("print('hi')").success
        guest = getattr(box.inner, "_guest")  # noqa: B009 - no public name for what a jail has used
        used = guest.lease.usage.cpu_seconds()
        parked.close()
    return float(used)


def _import_cpu(backend: str) -> float:
    with atoll.create_sandbox(backend=backend, timeout_ms=120_000) as box:
        parked.close()
        return _cpu_seconds(box, "import numpy, pandas")


def _cpu_seconds(box: atoll.SyncSandbox, code: str) -> float:
    result = box.execute(code)
    assert result.success, result
    return (result.cpu_ms or 0.0) / 1000


def _memory(backend: str) -> float:
    """Return the proportional memory of all processes of a session."""
    parked.close()
    before = descendants(supervisor.pid)
    with atoll.create_sandbox(backend=backend) as box:
        assert box.execute("print('hi')").success
        parked.close()
        time.sleep(0.2)  # until the parked container has ended
        return float(sum(map(_pss, descendants(supervisor.pid) - before)))


def _pss(pid: int) -> int:
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return 0
