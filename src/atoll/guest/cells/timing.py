"""%time and %timeit: run code and print how long it took."""

from __future__ import annotations

import re
import time

from . import magics
from .splitting import split
from .usage import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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


def time_line(code: str, namespace: dict[str, Any]) -> Any:
    """Run statements once, print their time, and return the value of a last expression."""
    body, last = _compiled(code, "%time")
    clock = Clock()
    try:
        exec(body, namespace)
        return None if last is None else eval(last, namespace)
    finally:
        clock.report()


def timeit_line(text: str, namespace: dict[str, Any]) -> None:
    """Run %timeit: options, then the code."""
    number, repeats, code = _options(text)
    _timeit(code, namespace, number, repeats)


def timeit_cell(text: str, body: str, namespace: dict[str, Any]) -> None:
    """Run %%timeit: options and code that is run once before; the cell is what is measured."""
    number, repeats, setup = _options(text)
    exec(compile(setup, "<timeit setup>", "exec", dont_inherit=True), namespace)
    _timeit(body, namespace, number, repeats)


def _timeit(code: str, namespace: dict[str, Any], number: int, repeats: int) -> None:
    """Run code again and again for a bounded time; print the mean and its deviation."""
    work = compile(code, "<timeit>", "exec", dont_inherit=True)
    deadline = time.perf_counter() + MOST_SECONDS
    number = number or _enough(work, namespace, deadline)
    runs = [_measure(work, namespace, number)]
    while len(runs) < repeats and time.perf_counter() < deadline:
        runs.append(_measure(work, namespace, number))
    mean = sum(runs) / len(runs)
    spread = (sum((one - mean) ** 2 for one in runs) / len(runs)) ** 0.5
    text = "{} ± {} per loop (mean ± std. dev. of {} run{}, {:,} loop{} each)"
    plural = ("" if len(runs) == 1 else "s", "" if number == 1 else "s")
    print(text.format(_shown(mean), _shown(spread), len(runs), plural[0], number, plural[1]))


def _compiled(code: str, what: str) -> Any:
    if not code:
        raise UsageError("{} takes the code to run, on the same line".format(what))
    return split(code, "<time>")


def _options(text: str) -> tuple[int, int, str]:
    """Return loops (0: not given), repeats and code of `-n 10 -r 3 code`."""
    code = magics.without_options(text)
    given = dict(re.findall(r"-([nr])\s*(\d+)", text[: len(text) - len(code)]))
    return int(given.get("n", 0)), max(1, int(given.get("r", REPEATS))), code


def _enough(work: Any, namespace: dict[str, Any], deadline: float) -> int:
    number = 1
    while _measure(work, namespace, number) * number < LONG_ENOUGH and number < MOST_LOOPS:
        number *= 10
        if time.perf_counter() > deadline:
            break
    return number


def _measure(work: Any, namespace: dict[str, Any], number: int) -> float:
    start = time.perf_counter()
    for _ in range(number):
        exec(work, namespace)
    return (time.perf_counter() - start) / number


def _shown(seconds: float) -> str:
    for size, unit in _UNITS:
        if seconds >= size:
            return "{:.3g} {}".format(seconds / size, unit)
    return "0 ns"
