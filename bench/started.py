"""Rows about processes beside the cells, against a process without a sandbox."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING

import atoll
from bench.rows import Arms, Goal, row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.rows import Scale

MEGABYTES, QUICK_MEGABYTES = 1024, 128
STARTS, LINES = 10, 100


@row(
    what="a process beside the cells, started",
    against="subprocess.Popen without a sandbox",
    rounds=10,
    goal=Goal(value=0.015),
)
def process_start(_scale: Scale) -> Iterator[Arms]:
    def ours() -> float:
        began = time.perf_counter()
        for _ in range(STARTS):
            box.start(["true"])
        return (time.perf_counter() - began) / STARTS

    def theirs() -> float:
        began = time.perf_counter()
        started = [_popen("true") for _ in range(STARTS)]
        took = (time.perf_counter() - began) / STARTS
        for process in started:
            process.communicate()
        return took

    with atoll.create_sandbox(backend="native") as box:
        yield Arms(ours=ours, theirs=theirs)


@row(
    what="a line to a process beside the cells, and its answer",
    against="a pipe to a process without a sandbox",
    rounds=10,
    goal=Goal(value=0.002),
)
def process_line(_scale: Scale) -> Iterator[Arms]:
    with (
        atoll.create_sandbox(backend="native") as box,
        _popen("cat") as plain,
    ):
        process = box.start(["cat"])
        assert plain.stdin is not None
        assert plain.stdout is not None
        stdin, stdout = plain.stdin, plain.stdout

        def ours() -> float:
            began = time.perf_counter()
            for _ in range(LINES):
                process.write(b"line\n")
                process.read()
            return (time.perf_counter() - began) / LINES

        def theirs() -> float:
            began = time.perf_counter()
            for _ in range(LINES):
                stdin.write(b"line\n")
                stdin.flush()
                stdout.readline()
            return (time.perf_counter() - began) / LINES

        yield Arms(ours=ours, theirs=theirs)
        stdin.close()


@row(
    what="bytes that a process beside the cells prints",
    against="a pipe of a process without a sandbox",
    rounds=5,
    unit="MB/s",
    goal=Goal(floor=200),
)
def process_output(scale: Scale) -> Iterator[Arms]:
    size = (QUICK_MEGABYTES if scale.quick else MEGABYTES) * 10**6
    command = ["head", "-c", str(size), "/dev/zero"]

    def ours() -> float:
        began = time.perf_counter()
        process = box.start(command)
        count = sum(len(piece.data) for piece in process.output())
        assert (count, process.dropped) == (size, 0)
        return size / 1e6 / (time.perf_counter() - began)

    def theirs() -> float:
        began = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            while os.read(process.stdout.fileno(), 1 << 18):
                pass
        return size / 1e6 / (time.perf_counter() - began)

    with atoll.create_sandbox(backend="native") as box:
        yield Arms(ours=ours, theirs=theirs)


def _popen(*command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
