"""What a trainer asks for: thousands of programs of mixed kinds, many at once, each judged.

    python -m bench.trainer [--programs 2000] [--at-once 64] [--arm NAME ...]

Every program has its input and its own answer; a wrong one is counted. The arms: `python -c` in a
process for each program, with limits of time and memory and no isolation; `Pool.run`; and
`POST /run_code` of an `atoll serve` with one client process. CPU time is that of all processes of
an arm, clients and servers included.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from atoll.config import SandboxConfig
from atoll.hosting.pool.pool import Pool
from atoll.policy import ExecutionPolicy
from bench.processes import descendants

SECONDS, MEMORY = 10.0, 1 << 30
LATE_SECONDS = 1.0
KINDS = {
    "print": (60, "n = int(input())\nprint(n * 2)"),
    "numpy": (15, "import numpy as np\nn = int(input())\nprint(int(np.arange(n + 1).sum()))"),
    "pandas": (5, "import pandas as pd\nprint(pd.Series([int(input())] * 3).sum())"),
    "fails": (8, "n = int(input())\nassert n < 0, n"),
    "crashes": (2, "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"),
    "memory": (5, "x = bytearray(8 << 30)\nprint(len(x))"),
    "late": (5, "import time\ntime.sleep(60)"),
}
"""The share of each kind in a hundred, and its program."""


@dataclass(frozen=True, slots=True)
class Task:
    """A program, its input, and what has to come of it."""

    kind: str
    number: int

    @property
    def seconds(self) -> float:
        """Its time limit."""
        return LATE_SECONDS if self.kind == "late" else SECONDS

    def is_right(self, stdout: str, code: int | None) -> bool:
        """Return whether output and exit code (None: it was late) are those of the program."""
        n = self.number
        good = {"print": n * 2, "numpy": n * (n + 1) // 2, "pandas": n * 3}
        if self.kind in good:
            return (stdout, code) == (f"{good[self.kind]}\n", 0)
        if self.kind == "late":
            return code is None
        return stdout == "" and code not in (0, None)


Ask = Callable[[Task], Awaitable[tuple[str, "int | None"]]]


def tasks(count: int) -> list[Task]:
    """Return the same mixed programs each time."""
    dice = random.Random(7)
    names, weights = list(KINDS), [share for share, _ in KINDS.values()]
    return [Task(kind, dice.randrange(10_000)) for kind in dice.choices(names, weights, k=count)]


async def ask_python(task: Task) -> tuple[str, int | None]:
    """Run a program by `python -c`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        KINDS[task.kind][1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=_limit_memory,
    )
    try:
        async with asyncio.timeout(task.seconds):
            stdout, _ = await process.communicate(str(task.number).encode())
    except TimeoutError:
        process.kill()
        await process.wait()
        return "", None
    return stdout.decode(), process.returncode


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))


def ask_pool(pool: Pool) -> Ask:
    """Return what runs a program in a fresh guest of a pool."""
    config = SandboxConfig(backend="native", policy=ExecutionPolicy(memory_bytes=MEMORY))

    async def ask(task: Task) -> tuple[str, int | None]:
        result = await pool.run(
            KINDS[task.kind][1],
            config,
            timeout_ms=task.seconds * 1000,
            stdin=str(task.number),
            script=True,
        )
        return result.stdout, None if result.kind == "timeout" else result.exit_code

    return ask


def ask_service(host: str, port: int, key: str) -> Ask:
    """Return what sends a program to POST /run_code, on connections that are kept."""
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(task: Task) -> tuple[str, int | None]:
        reader, writer = idle.pop() if idle else await asyncio.open_connection(host, port)
        body = json.dumps(
            {
                "code": KINDS[task.kind][1],
                "language": "python",
                "stdin": str(task.number),
                "run_timeout": task.seconds,
                "compile_timeout": 60,
                "memory_limit_MB": MEMORY >> 20,
            }
        ).encode()
        head = f"POST /run_code HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(lines.partition(b"content-length: ")[2].split(b"\r", 1)[0])
        answer = json.loads(await reader.readexactly(length))
        idle.append((reader, writer))
        ran = answer["run_result"]
        if ran is None:
            raise RuntimeError(answer["message"])
        return ran["stdout"], ran["return_code"]

    return ask


async def measure(name: str, ask: Ask, todo: list[Task], at_once: int) -> str:
    """Run all programs, so many at once; return a row of the table."""
    left, took, wrong = iter(todo), [], 0

    async def work() -> None:
        nonlocal wrong
        for task in left:
            begun = time.perf_counter()
            stdout, code = await ask(task)
            if task.kind != "late":
                took.append(time.perf_counter() - begun)
            wrong += not task.is_right(stdout, code)

    before, begun = _cpu_seconds(), time.perf_counter()
    await asyncio.gather(*(work() for _ in range(at_once)))
    seconds, cpu = time.perf_counter() - begun, _cpu_seconds() - before
    took.sort()
    p50, p99 = (1000 * took[int(len(took) * share)] for share in (0.5, 0.99))
    rate, each = len(todo) / seconds, 1000 * cpu / len(todo)
    return f"{name:10} | {rate:8.1f} | {p50:8.0f} | {p99:8.0f} | {wrong:5} | {each:10.1f}"


def _cpu_seconds() -> float:
    """Return the CPU time of this process, all below it, and all that they have waited for."""
    ticks = 0
    for pid in {os.getpid(), *descendants(os.getpid())}:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


async def run(arms: list[str], todo: list[Task], at_once: int) -> None:
    """Measure the arms, one after the other, and print the table."""
    print(f"{len(todo)} programs, {at_once} at once; p50 and p99 without programs that are late")
    print("arm        | programs/s | p50 ms | p99 ms | wrong | CPU-ms each")
    first = [Task(kind, 1) for kind in KINDS if kind != "late"] * 4
    if "python" in arms:
        print(await measure("python -c", ask_python, todo, at_once), flush=True)
    if "pool" in arms:
        async with Pool() as pool:
            await measure("", ask_pool(pool), first, 4)  # so that zygotes are warm
            print(await measure("Pool.run", ask_pool(pool), todo, at_once), flush=True)
    if "service" in arms:
        with tempfile.TemporaryDirectory() as folder:
            serving, address = _serve(folder, at_once)
            try:
                ask = ask_service(*address)
                await measure("", ask, first, 4)
                print(await measure("/run_code", ask, todo, at_once), flush=True)
            finally:
                serving.terminate()
                serving.wait()


def _serve(folder: str, at_once: int) -> tuple[subprocess.Popen[str], tuple[str, int, str]]:
    atoll = [sys.executable, "-m", "atoll.cli.main"]
    quota = ("--quota", "requests_per_second=100000", "--quota", f"executions={2 * at_once}")
    made = [*atoll, "keys", "add", "--folder", folder, *quota]
    told = subprocess.run(made, capture_output=True, text=True, check=True)
    key = next(word for word in told.stdout.split() if word.startswith("atl_"))
    command = [*atoll, "serve", "--port", "0", "--folder", folder, "--max-running", str(at_once)]
    serving = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert serving.stdout is not None
    for line in serving.stdout:
        if found := re.search(r"http://([\d.]+):(\d+)", line):
            return serving, (found[1], int(found[2]), key)
    raise RuntimeError("the service did not start")


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.trainer")
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--arm", action="append", choices=("python", "pool", "service"))
    given = parser.parse_args()
    arms = given.arm or ["python", "pool", "service"]
    asyncio.run(run(arms, tasks(given.programs), given.at_once))


if __name__ == "__main__":
    main()
