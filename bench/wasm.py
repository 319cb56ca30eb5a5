"""Rows about CPython as WebAssembly: a start, a cell, a call, plain computing, a large context."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import atoll
from bench import warm
from bench.rows import Arms, Goal, needs, row, timed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.rows import Scale

CONTEXT = "The quick brown fox jumps over the lazy dog, again and again and\n" * (100 * 10**6 // 65)
FREE = atoll.ExecutionPolicy(fuel_budget=None)
COUNTED = atoll.ExecutionPolicy(fuel_budget=10**12)
REST_SECONDS = 0.05
CALLS = 50
MANY_CALLS = f"for _ in range({CALLS}): ask('hi')"
COMPUTE = """
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
fib(20)
total = 0
for i in range(300_000): total += i * i % 7
words = {str(i): i for i in range(60_000)}
"".join(sorted(words))
[text.upper() for text in words if "9" in text]
"""


@row(
    what="wasm: fresh sandbox, print('hi')",
    against="python -c pass",
    rounds=50,
    goal=Goal(ratio=1.0),
)
def wasm_fresh(_scale: Scale) -> Iterator[Arms]:
    needs("wasmtime", "componentize_py", extra="wasm")
    yield Arms(
        ours=_fresh,
        theirs=timed(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True)),
    )


@row(what="wasm: execute x = 1 in a live session", against="native", rounds=100)
def wasm_execute(_scale: Scale) -> Iterator[Arms]:
    needs("wasmtime", "componentize_py", extra="wasm")
    with _open(FREE) as box, atoll.create_sandbox(backend="native") as other:
        yield Arms(
            ours=timed(lambda: box.execute("x = 1")), theirs=timed(lambda: other.execute("x = 1"))
        )


@row(what="wasm: execute x = 1", against="monty: a subset of Python", rounds=100)
def wasm_execute_monty(_scale: Scale) -> Iterator[Arms]:
    needs("wasmtime", "componentize_py", extra="wasm")
    needs("pydantic_monty", extra="peers")
    import pydantic_monty  # noqa: PLC0415 - an extra

    with _open(FREE) as box, pydantic_monty.Monty() as pool, pool.checkout() as session:
        yield Arms(
            ours=timed(lambda: box.execute("x = 1")),
            theirs=timed(lambda: session.feed_run("x = 1")),
        )


@row(what=f"wasm: {CALLS} calls of a host function", against="native", rounds=20)
def wasm_call(_scale: Scale) -> Iterator[Arms]:
    needs("wasmtime", "componentize_py", extra="wasm")
    tools = {"ask": _answer}
    with (
        _open(FREE, tools=tools) as box,
        atoll.create_sandbox(backend="native", tools=tools) as other,
    ):
        yield Arms(
            ours=timed(lambda: _ran(box.execute(MANY_CALLS))),
            theirs=timed(lambda: _ran(other.execute(MANY_CALLS))),
        )


@row(what=f"wasm: {CALLS} calls of a host function", against="monty", rounds=20)
def wasm_call_monty(_scale: Scale) -> Iterator[Arms]:
    needs("wasmtime", "componentize_py", extra="wasm")
    needs("pydantic_monty", extra="peers")
    import pydantic_monty  # noqa: PLC0415 - an extra

    with _open(FREE, tools={"ask": _answer}) as box, pydantic_monty.Monty() as pool:

        def theirs() -> None:
            with pool.checkout() as session:  # a session may call a thousand times
                session.feed_run(MANY_CALLS, external_lookup={"ask": lambda text: text})

        yield Arms(ours=timed(lambda: _ran(box.execute(MANY_CALLS))), theirs=timed(theirs))


@row(
    what="wasm: computing in plain Python, fuel counted",
    against="native",
    rounds=10,
    goal=Goal(ratio=3.5),
)
def wasm_compute(_scale: Scale) -> Iterator[Arms]:
    needs("wasmtime", "componentize_py", extra="wasm")
    with _open(COUNTED) as box, atoll.create_sandbox(backend="native") as other:
        yield Arms(
            ours=lambda: _cpu_seconds(box.execute(COMPUTE)),
            theirs=lambda: _cpu_seconds(other.execute(COMPUTE)),
        )


@row(
    what="wasm: what a context of 100 MB adds to a start",
    against="decoding it on the host",
    rounds=5,
)
def wasm_context(_scale: Scale) -> Iterator[Arms]:
    needs("wasmtime", "componentize_py", extra="wasm")
    data = CONTEXT.encode()
    yield Arms(
        ours=lambda: _fresh(CONTEXT),
        minus=_fresh,
        theirs=timed(data.decode),
    )


def _open(policy: atoll.ExecutionPolicy, **options: Any) -> atoll.SyncSandbox:
    return atoll.create_sandbox(backend="wasm", policy=policy, **options)


async def _answer(text: str) -> str:
    return text


def _fresh(context: Any = None) -> float:
    """Until the answer; a moment before it, so that the one that waits is there."""
    time.sleep(REST_SECONDS)
    started = time.perf_counter()
    with atoll.create_sandbox(backend="wasm", context=context) as box:
        _ran(box.execute(warm.HI))
        return time.perf_counter() - started


def _ran(result: atoll.SandboxResult) -> None:
    assert result.success, result


def _cpu_seconds(result: atoll.SandboxResult) -> float:
    _ran(result)
    return (result.cpu_ms or result.duration_ms) / 1000
