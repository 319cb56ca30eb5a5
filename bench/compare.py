"""Print the numbers of README's comparison table, as Markdown: `python -m bench.compare`.

Every contender does the same three things: a fresh sandbox that prints, one more cell in a live
session, and a loop in plain Python. They take turns, round by round, so that noise is fair to all.
Times are medians of wall-clock time. "Computing" is the best time of all rounds, as a ratio to
plain CPython in this process. Run it on an idle machine: under load only ratios mean anything.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING

import atoll
from bench.rows import timed
from bench.start import running_daemon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from bench.rows import Probe

HI, CELL = "print('hi')", "x = 1"
COMPUTE = """
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
fib(17)
total = 0
for i in range(150000):
    total += i * i % 7
"""
REST_SECONDS = 0.3
"""Seconds before each fresh start, not measured, in which warm pools refill as between requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """The probes of one contender; None for something that it cannot do."""

    fresh: Probe
    cell: Probe | None
    compute: Probe


@dataclass(slots=True)
class Line:
    """One contender and its samples so far."""

    name: str
    probes: Probes
    samples: dict[str, list[float]] = field(default_factory=dict)

    def measure(self, what: str) -> None:
        """Take one sample of `fresh`, `cell` or `compute`, if this contender has it."""
        probe: Probe | None = getattr(self.probes, what)
        if probe is not None:
            self.samples.setdefault(what, []).append(probe())

    def median(self, what: str) -> float | None:
        """Return the median of all samples but the first, which warms up."""
        taken = self.samples.get(what)
        return statistics.median(taken[1:]) if taken else None

    def best(self, what: str) -> float:
        """Return the smallest sample."""
        return min(self.samples[what])


def main() -> None:
    """Measure every contender that is installed and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="samples of each number (15)")
    rounds = parser.parse_args().rounds
    with contextlib.ExitStack() as stack:
        lines = [Line(name, stack.enter_context(make())) for name, make in contenders().items()]
        for number in range(rounds + 1):
            print(f"round {number} of {rounds}", file=sys.stderr)
            for line in lines:
                time.sleep(REST_SECONDS)
                line.measure("fresh")
            for line in lines:
                line.measure("cell")
                line.measure("compute")
    print(as_markdown(lines))


def as_markdown(lines: list[Line]) -> str:
    """Return the table; ratios are relative to the first line."""
    rows = ["| | fresh + `print` | | next cell | computing |", "| --- | --- | --- | --- | --- |"]
    base = lines[0].median("fresh") or 0.0
    for line in lines:
        fresh, cell = line.median("fresh") or 0.0, line.median("cell")
        next_cell = "-" if cell is None else f"{cell * 1000:.2f} ms"
        rows.append(
            f"| {line.name} | {fresh * 1000:.1f} ms | {fresh / base:.2g}x | {next_cell} |"
            f" {line.best('compute') / lines[0].best('compute'):.1f}x |"
        )
    return "\n".join(rows)


def contenders() -> dict[str, Callable[[], AbstractContextManager[Probes]]]:
    """Yield the installed contenders, in the order of the table."""
    found: dict[str, Callable[[], AbstractContextManager[Probes]]] = {
        "subprocess: `python -c`": plain_subprocess,
        "Atoll `native`": lambda: sandbox("native"),
        "Atoll `daemon`": daemon,
    }
    if find_spec("wasmtime") and find_spec("componentize_py"):
        found["Atoll `wasm`"] = lambda: sandbox("wasm")
    if find_spec("deno"):
        found["Atoll `pyodide` (Pyodide on Deno)"] = lambda: sandbox("pyodide")
    if find_spec("pydantic_monty"):
        found["monty"] = monty
    return found


@contextlib.contextmanager
def plain_subprocess() -> Iterator[Probes]:
    """Run a new interpreter each time; it has no session."""

    def fresh() -> None:
        done = subprocess.run([sys.executable, "-c", HI], capture_output=True, check=True)
        assert done.stdout == b"hi\n"

    yield Probes(fresh=timed(fresh), cell=None, compute=timed(lambda: exec(COMPUTE, {})))


@contextlib.contextmanager
def sandbox(backend: str) -> Iterator[Probes]:
    """Run a backend of Atoll's."""
    policy = atoll.ExecutionPolicy(fuel_budget=None)

    def fresh() -> float:
        started = time.perf_counter()
        with atoll.create_sandbox(backend=backend, policy=policy) as box:
            assert box.execute(HI).stdout == "hi\n"
            return time.perf_counter() - started

    with atoll.create_sandbox(backend=backend, policy=policy) as live:

        def run(code: str) -> None:
            result = live.execute(code)
            assert result.success, result

        yield Probes(
            fresh=fresh, cell=timed(lambda: run(CELL)), compute=timed(lambda: run(COMPUTE))
        )


@contextlib.contextmanager
def daemon() -> Iterator[Probes]:
    """Run a daemon for this measurement alone, with its default libraries imported."""
    with running_daemon(), sandbox("daemon") as probes:
        yield probes


@contextlib.contextmanager
def monty() -> Iterator[Probes]:
    """Run Pydantic's monty, an interpreter of a subset of Python, from its own worker pool."""
    import pydantic_monty  # noqa: PLC0415 - an extra

    with pydantic_monty.Monty() as pool, pool.checkout() as live:

        def fresh() -> None:
            printed = pydantic_monty.CollectString()
            with pool.checkout() as session:
                session.feed_run(HI, print_callback=printed)
            assert printed.output == "hi\n"

        yield Probes(
            fresh=timed(fresh),
            cell=timed(lambda: live.feed_run(CELL)),
            compute=timed(lambda: live.feed_run(COMPUTE)),
        )


if __name__ == "__main__":
    main()
