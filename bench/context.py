"""Rows about a large context: how soon the guest has it, and the cost of making and reading it.

The text is ASCII, for which `bytes.decode()` is the fastest: other texts give better ratios.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import atoll
from bench.rows import Arms, Goal, row, timed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.rows import Scale

LINE = b"The quick brown fox jumps over the lazy dog, again and again and\n"
THERE = Goal(ratio=1 / 20, value=0.020, at_full_size=True)


def text_bytes(scale: Scale) -> bytes:
    """Return text of the scale's size."""
    return (LINE * (scale.context_bytes // len(LINE) + 1))[: scale.context_bytes]


@row(
    what="{size} context there: what it adds to start and len(context)",
    against="bytes.decode() of {size}",
    rounds=20,
    goal=THERE,
)
def context_there(scale: Scale) -> Iterator[Arms]:
    data = text_bytes(scale)
    with closing(atoll.Context.from_text(data.decode())) as context:
        yield Arms(
            ours=lambda: _first_answer(context, "len(context)", len(data)),
            minus=lambda: _first_answer(None, "len('')", 0),
            theirs=timed(data.decode),
        )


@row(what="Context.from_text of {size}, once", against="bytes.decode() of {size}", rounds=10)
def context_from_text(scale: Scale) -> Iterator[Arms]:
    data = text_bytes(scale)
    text = data.decode()
    yield Arms(ours=timed(lambda: atoll.Context.from_text(text)), theirs=timed(data.decode))


@row(what="Context.from_file of {size}, once", against="read_bytes().decode()", rounds=10)
def context_from_file(scale: Scale) -> Iterator[Arms]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "context.txt")
        path.write_bytes(text_bytes(scale))
        yield Arms(
            ours=timed(lambda: atoll.Context.from_file(path)),
            theirs=timed(lambda: path.read_bytes().decode()),
        )


@row(what="context.count('x') of {size}, first in the guest", against="the same here", rounds=10)
def context_read(scale: Scale) -> Iterator[Arms]:
    text = text_bytes(scale).decode()
    with closing(atoll.Context.from_text(text)) as context:
        yield Arms(ours=lambda: _first_read(context), theirs=timed(lambda: text.count("x")))


def _first_answer(context: atoll.Context | None, code: str, expected: int) -> float:
    """Return the seconds from creating a sandbox to its first answer, without its end."""
    started = time.perf_counter()
    with atoll.create_sandbox(backend="native", context=context) as box:
        answer = box.execute(code).value
        took = time.perf_counter() - started
    assert answer == expected, answer
    return took


def _first_read(context: atoll.Context) -> float:
    with atoll.create_sandbox(backend="native", context=context) as box:
        return timed(lambda: box.execute("context.count('x')"))()
