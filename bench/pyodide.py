"""Rows about Pyodide: savings by the memory image and a parked process, cost of a context."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from unittest import mock

import atoll
from atoll.backends.pyodide import image
from atoll.backends.pyodide.launch import parked
from bench.rows import Arms, needs, row, timed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.rows import Scale

CONTEXT = "The quick brown fox jumps over the lazy dog, again and again and\n" * (100 * 2**20 // 65)
PATIENCE_SECONDS = 30


@row(what="pyodide: start from the memory image, 1 + 1", against="without the image", rounds=10)
def pyodide_image(_scale: Scale) -> Iterator[Arms]:
    needs("deno", extra="pyodide")
    yield Arms(ours=_cold, theirs=_without_image)
    parked.close()


@row(what="pyodide: start in a parked process, 1 + 1", against="from the memory image", rounds=10)
def pyodide_parked(_scale: Scale) -> Iterator[Arms]:
    needs("deno", extra="pyodide")
    yield Arms(ours=_warm, theirs=_cold)
    parked.close()


@row(what="pyodide: what a context of 100 MB adds to a start", against="a start", rounds=5)
def pyodide_context(_scale: Scale) -> Iterator[Arms]:
    needs("deno", extra="pyodide")
    yield Arms(ours=lambda: _cold(CONTEXT), minus=_cold, theirs=_cold)
    parked.close()


@row(what="pyodide: execute 1 + 1 in a live session", against="native", rounds=100)
def pyodide_execute(_scale: Scale) -> Iterator[Arms]:
    needs("deno", extra="pyodide")
    with (
        atoll.create_sandbox(backend="pyodide") as box,
        atoll.create_sandbox(backend="native") as other,
    ):
        yield Arms(
            ours=timed(lambda: box.execute("1 + 1")), theirs=timed(lambda: other.execute("1 + 1"))
        )
    parked.close()


def _cold(context: Any = None) -> float:
    parked.close()
    return _start(context)


def _without_image() -> float:
    with mock.patch.object(image, "find", _no_image):
        return _cold()


def _warm() -> float:
    end = time.monotonic() + PATIENCE_SECONDS
    if not parked.count:
        _start()
    while not parked.waiting[0].ready and time.monotonic() < end:
        time.sleep(0.01)
    return _start()


def _start(context: Any = None) -> float:
    """Return the seconds to the first answer, without the start of the next parked process."""
    started = time.perf_counter()
    with atoll.create_sandbox(backend="pyodide", context=context) as box:
        assert box.execute("1 + 1").value == 2
        return time.perf_counter() - started


def _no_image(*_: object) -> Path | None:
    return None
