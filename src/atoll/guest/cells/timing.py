"""%time and %timeit: run code and print how long it took."""

from __future__ import annotations

import re
import time

from . import magics
from .installing import UsageError
from .splitting import split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..shared.messages import Names

MOST_SECONDS = 2.0
"""What %timeit may spend on repeating; one run may of course take longer."""
REPEATS = 7
LONG_ENOUGH = 0.05
MOST_LOOPS = 10_000_000
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


class Clock:
    """Measures from its making on."""

    def __init__(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def report(self) -> None:
        """Print CPU and wall time."""
        cpu, wall = time.process_time() - self._cpu, time.perf_counter() - self._wall
        print("CPU times: total: {}\nWall time: {}".format(_shown(cpu), _shown(wall)))


def time_line(code: str, namespace: Names) -> Any:
    """Run statements once, print their time, and return the value of a last expression."""
    if not code:
        raise UsageError("%time takes the code to run, on the same line")
    body, last = split(code, "<time>")
    clock = Clock()
    try:
        exec(body, namespace)
        return None if last is None else eval(last, namespace)
    finally:
        clock.report()


def timeit(text: str, body: str | None, namespace: Names) -> None:
    """Measure code that follows options; of %%timeit that is run once, and the body measured."""
    code = magics.without_options(text)
    given = dict(re.findall(r"-([nr])\s*(\d+)", text[: len(text) - len(code)]))
    if body is not None:
        exec(compile(code, "<timeit setup>", "exec", dont_inherit=True), namespace)
        code = body
    _timeit(code, namespace, int(given.get("n", 0)), max(1, int(given.get("r", REPEATS))))


def _timeit(code: str, namespace: Names, number: int, repeats: int) -> None:
    """Run code again and again for a bounded time; print the mean and its deviation."""
    work = compile(code, "<timeit>", "exec", dont_inherit=True)
    deadline = time.perf_counter() + MOST_SECONDS
    number = number or _enough(work, namespace, deadline)
    runs = [_measure(work, namespace, number)]
    while len(runs) < repeats and time.perf_counter() < deadline:
        runs.append(_measure(work, namespace, number))
    mean = sum(runs) / len(runs)
    spread = (sum((run - mean) ** 2 for run in runs) / len(runs)) ** 0.5
    text = "{} ± {} per loop (mean ± std. dev. of {} run{}, {:,} loop{} each)"
    plural = ("" if len(runs) == 1 else "s", "" if number == 1 else "s")
    print(text.format(_shown(mean), _shown(spread), len(runs), plural[0], number, plural[1]))


def _enough(work: Any, namespace: Names, deadline: float) -> int:
    number = 1
    while _measure(work, namespace, number) * number < LONG_ENOUGH and number < MOST_LOOPS:
        number *= 10
        if time.perf_counter() > deadline:
            break
    return number


def _measure(work: Any, namespace: Names, number: int) -> float:
    start = time.perf_counter()
    for _ in range(number):
        exec(work, namespace)
    return (time.perf_counter() - start) / number


def _shown(seconds: float) -> str:
    for size, unit in _UNITS:
        if seconds >= size:
            return "{:.3g} {}".format(seconds / size, unit)
    return "0 ns"
