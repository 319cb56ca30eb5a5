"""Rows about CPU time: the cost of a fresh execution in all processes together, and in each.

CPU time is meaningful on a busy machine, where a rate is not. `python -m bench.cpu` prints it by
process.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING

import atoll
from atoll.jail.supervisor.client import supervisor
from bench import clones, processes, start, warm
from bench.fresh import PASS, run_python
from bench.rows import Arms, Goal, row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from atoll.config import SandboxConfig
    from bench.rows import Scale

AT_ONCE = 4
EXECUTIONS, QUICK_EXECUTIONS = 96, 8
GOALS = {"bare": Goal(value=9, ratio=0.5), "full": Goal(value=20, ratio=1.0)}
TIMES, LITTLE = 8, 8 << 20
_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")


def _arms(tier: str, scale: Scale) -> Iterator[Arms]:
    pool = warm.shared()
    config, count = pool.config(tier), QUICK_EXECUTIONS if scale.quick else EXECUTIONS
    yield Arms(
        ours=lambda: sum(measure(pool, config, count).values()),
        theirs=lambda: _python_ms(count // 4),
    )


def measure(pool: warm.Warm, config: SandboxConfig, count: int) -> dict[str, float]:
    """Return the CPU-ms of one fresh execution, by process."""
    before = used()
    pool.run(_execute(pool, config, count))
    return {name: (now - before.get(name, 0.0)) / count for name, now in used().items()}


async def _execute(pool: warm.Warm, config: SandboxConfig, count: int) -> None:
    async def work() -> None:
        for _ in range(count // AT_ONCE):
            async with await pool.open(config) as box:
                result = await box.execute(warm.HI)
                assert result.success, result

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    await pool.park(config)


@row(
    name="cpu-start",
    what="CPU of a native start, print('hi'), destroy",
    against=f"CPU of {PASS}",
    rounds=10,
    unit="CPU-ms",
    goal=Goal(ratio=1.6),
)
def _start_arms(_scale: Scale) -> Iterator[Arms]:
    start.in_sandbox("native")  # which starts the supervisor
    yield Arms(
        ours=lambda: of_each(lambda: start.in_sandbox("native")), theirs=lambda: _python_ms(TIMES)
    )


@row(
    name="cpu-fork",
    what="CPU of fork() with {size} of numpy, and of its end",
    against="the same with 8 MB",
    rounds=5,
    unit="CPU-ms",
    goal=Goal(ratio=1.2),
)
def _fork_arms(scale: Scale) -> Iterator[Arms]:
    with (
        clones.session_with_array(scale.context_bytes) as (pool, large),
        clones.session_with_array(LITTLE) as (_, small),
    ):
        yield Arms(
            ours=lambda: of_each(lambda: pool.run(clones.time_fork(large))),
            theirs=lambda: of_each(lambda: pool.run(clones.time_fork(small))),
        )


def of_each(work: Callable[[], object], times: int = TIMES) -> float:
    """Return the mean CPU-ms of `work` in this process and all its descendants."""
    before = _all_below()
    for _ in range(times):
        work()
    return (_all_below() - before) / times


def _all_below() -> float:
    """Return the CPU-ms so far of this process and its descendants, reaped ones included."""
    found = 0.0
    for pid in (os.getpid(), *processes.descendants(os.getpid())):
        with contextlib.suppress(OSError):  # it has just ended: its parent's counter includes it
            found += sum(_times(pid))
    return found


def used() -> dict[str, float]:
    """Return the CPU-ms so far of the host, the supervisor, and each zygote with its guests."""
    found = {"host": _own(os.getpid()), "supervisor": _own(supervisor.pid)}
    for number, (host, zygote) in enumerate(processes.zygote_hosts_and_zygotes(supervisor.pid)):
        found[f"zygote host {number}"] = _own(host) + _children(host)
        found[f"zygote {number}"] = _own(zygote)
        found[f"its guests {number}"] = _children(zygote)
    return found


def measure_start(count: int) -> dict[str, float]:
    """Return the CPU-ms of one cold native start, a print and the end, by process."""
    start.in_sandbox("native")  # which starts the supervisor
    before = _start_times()
    guest = sum(_guest_ms() for _ in range(count))
    host, supervisor_ms, jail = (now - old for now, old in zip(_start_times(), before, strict=True))
    taken = {
        "host": host,
        "supervisor": supervisor_ms,
        "pid 1": jail - guest,
        "guest": guest,
    }
    return {name: value / count for name, value in taken.items()}


def _start_times() -> tuple[float, float, float]:
    """Return the CPU-ms so far of the host, the supervisor, and all jails that have ended."""
    return _own(os.getpid()), _own(supervisor.pid), _children(supervisor.pid)


def _guest_ms() -> float:
    """Return the CPU-ms that a guest has taken when it has printed, as it says.

    It ends by itself: of processes that are killed with their pid 1 the kernel does not add the
    times to those of the supervisor's children.
    """
    with atoll.create_sandbox(backend="native") as box:
        box.execute(start.CODE)
        taken = box.execute("import time\ntime.process_time()").value
        box.execute("import os\nos._exit(0)")
    return 1000 * float(taken)


def _own(pid: int | None) -> float:
    return sum(_times(pid)[:2])


def _children(pid: int | None) -> float:
    """Return the CPU-ms of a process's reaped children."""
    return sum(_times(pid)[2:])


def _times(pid: int | None) -> list[float]:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return [int(field) * _TICK_MS for field in fields[11:15]]


def _python_ms(count: int) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(max(1, count)):
        run_python("pass")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used * 1000 / max(1, count)


for _tier, _goal in GOALS.items():
    row(
        name=f"cpu-{_tier}",
        what=f"CPU of a fresh execution, {_tier}, {AT_ONCE} at a time",
        against=f"CPU of {PASS}",
        rounds=5,
        unit="CPU-ms",
        goal=_goal,
    )(functools.partial(_arms, _tier))


def main() -> None:
    """Print the CPU time of each process."""
    pool = warm.shared()
    for tier in GOALS:
        config = pool.config(tier)
        measure(pool, config, QUICK_EXECUTIONS)
        _print(tier, measure(pool, config, EXECUTIONS))
    _print("cold native start", measure_start(EXECUTIONS // 2))
    _print(PASS, {"python": _python_ms(EXECUTIONS // 2)})


def _print(what: str, taken: dict[str, float]) -> None:
    print(f"{what}: {sum(taken.values()):.1f} CPU-ms")
    for name, value in taken.items():
        print(f"  {name:18} {value:.1f}")


if __name__ == "__main__":
    main()
