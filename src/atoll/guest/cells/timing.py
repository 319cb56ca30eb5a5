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

MAX_SECONDS = 2.0
"""Seconds after which %timeit does not repeat the code; one run may of course take longer."""
REPEATS = 7
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


def measure(text: str, body: str | None, namespace: Names) -> None:
    """Repeat code, the body of %%timeit or the text, for a bounded time; print its mean time.

    The text may begin with -n and -r. Before a body, it is the setup.
    """
    import timeit

    code = magics.without_options(text)
    given = dict(re.findall(r"-([nr])\s*(\d+)", text[: len(text) - len(code)]))
    setup, code = ("pass", code) if body is None else (code or "pass", body)
    timer = timeit.Timer(code, setup, globals=namespace)
    number = int(given.get("n", 0)) or timer.autorange()[0]
    runs = [timer.timeit(number)]
    while len(runs) < max(1, int(given.get("r", REPEATS))) and sum(runs) < MAX_SECONDS:
        runs.append(timer.timeit(number))
    mean = sum(runs) / len(runs)
    spread = (sum((run - mean) ** 2 for run in runs) / len(runs)) ** 0.5
    text = "{} ± {} per loop (mean ± std. dev. of {} run{}, {:,} loop{} each)"
    plural = ("" if len(runs) == 1 else "s", "" if number == 1 else "s")
    times = (_shown(mean / number), _shown(spread / number))
    print(text.format(*times, len(runs), plural[0], number, plural[1]))


def _shown(seconds: float) -> str:
    for size, unit in _UNITS:
        if seconds >= size:
            return "{:.3g} {}".format(seconds / size, unit)
    return "0 ns"
