"""Rows about searches of a context, compared with ripgrep on a file of the same bytes.

Cold is the first search of a context, without an index. ripgrep's file is in the page cache.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import atoll
from atoll.search.index import ContextIndex
from bench.rows import Arms, Goal, UnavailableError, needs, row, timed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.rows import Scale

QUICK_BYTES = 4 * 10**6
MOST = 100
NEEDLE = "here is the SpecialToken_42 of it, call 555-1234-x\n"
RARE, WITH_TEXT, WITHOUT, OFTEN = (
    "SpecialToken_42", r"[A-Z]\w+Token_\d+ of", "[0-9]{3}-[0-9]{4}-x", "return",
)  # fmt: skip
CLASSES = "[0-9]{3}[- ][0-9]{4}[- ][xyz]"
HARD = "(a+)+$"
WORDS = [
    "the", "return", "value", "of", "self", "index", "buffer", "import", "class", "error", "config",
    "session", "folder", "answer", "channel", "if", "else", "not", "None", "True", "path", "name",
    "17", "2024", "x-ray", "4096",
]  # fmt: skip
GOAL = Goal(ratio=1.5, at_full_size=True)
FAR_BELOW = Goal(ratio=0.2, at_full_size=True)


@row(what="explore: a rare text in 1 GB, cold", against="ripgrep", rounds=10, goal=GOAL)
def explore_rare(scale: Scale) -> Iterator[Arms]:
    yield from _cold(scale, RARE)


@row(what="explore: an expression with a text in it, cold", against="ripgrep", rounds=10, goal=GOAL)
def explore_regex(scale: Scale) -> Iterator[Arms]:
    yield from _cold(scale, WITH_TEXT)


@row(what="explore: digits - digits - x, cold", against="ripgrep", rounds=10, goal=GOAL)
def explore_digits(scale: Scale) -> Iterator[Arms]:
    yield from _cold(scale, WITHOUT)


@row(what="explore: nothing but classes, cold", against="ripgrep", rounds=5, goal=GOAL)
def explore_classes(scale: Scale) -> Iterator[Arms]:
    yield from _cold(scale, CLASSES)


@row(what=f"explore: the first {MOST} of very many, cold", against="ripgrep", rounds=20, goal=GOAL)
def explore_often(scale: Scale) -> Iterator[Arms]:
    yield from _cold(scale, OFTEN)


@row(what="explore: a rare text, context from a file, cold", against="ripgrep", rounds=10)
def explore_mapped(scale: Scale) -> Iterator[Arms]:
    yield from _cold(scale, RARE, from_file=True)


@row(what="explore: a rare text, indexed", against="ripgrep", rounds=20, goal=FAR_BELOW)
def explore_indexed(scale: Scale) -> Iterator[Arms]:
    with _places(scale) as (path, context):
        index = ContextIndex.of(context)
        index.build()
        theirs = timed(lambda: _ripgrep(path, RARE))
        yield Arms(ours=timed(lambda: _count(index, RARE)), theirs=theirs)


@row(what=f"explore: {HARD} on a line of 1 MB, ended by b", against="a$ on it", rounds=20)
def explore_catastrophic(_scale: Scale) -> Iterator[Arms]:
    needs("re2", extra="search")
    with contextlib.closing(atoll.Context.from_text("a" * 10**6 + "b\n")) as context:
        index = ContextIndex.of(context)
        yield Arms(
            ours=timed(lambda: index.grep(HARD)), theirs=timed(lambda: index.grep("[a-z]a$"))
        )


def _cold(scale: Scale, pattern: str, *, from_file: bool = False) -> Iterator[Arms]:
    """Return both searches; both must find the same number of lines."""
    with _places(scale, from_file=from_file) as (path, context):
        expected = _ripgrep(path, pattern)

        def ours() -> None:
            index = ContextIndex.of(context)
            assert _count(index, pattern) == expected
            index.close()

        yield Arms(ours=timed(ours), theirs=timed(lambda: _ripgrep(path, pattern)))


def _count(index: ContextIndex, pattern: str) -> int:
    return len(index.grep(pattern, most=MOST).hits)


def _ripgrep(path: Path, pattern: str) -> int:
    command = ["rg", "--no-config", "-n", "-m", str(MOST), "--text", "-e", pattern, str(path)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode < 2, done.stderr
    return done.stdout.count(b"\n")


@contextlib.contextmanager
def _places(scale: Scale, *, from_file: bool = False) -> Iterator[tuple[Path, atoll.Context]]:
    needs("re2", "numpy", extra="search")
    if shutil.which("rg") is None:
        raise UnavailableError("not installed: ripgrep, the program rg")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "text")
        _write(path, QUICK_BYTES if scale.quick else scale.context_bytes)
        context = (
            atoll.Context.from_file(path)
            if from_file
            else atoll.Context.from_text(path.read_text(encoding="ascii"))
        )
        with contextlib.closing(context):
            yield path, context


def _write(path: Path, total: int) -> None:
    """Write lines of random words with eight needles, the last one near the end."""
    dice, lines, written = random.Random(1), _lines(), 0
    with path.open("w") as file:
        for needle in range(1, 9):
            while written < total * needle // 9:
                start = dice.randrange(len(lines) - 1_000)
                written += file.write("".join(lines[start : start + 1_000]))
            written += file.write(NEEDLE)
        while written < total:
            written += file.write(dice.choice(lines))
        file.flush()
        os.fsync(file.fileno())  # or the disk would be written during a measurement


@functools.cache
def _lines() -> list[str]:
    dice = random.Random(2)
    return [" ".join(dice.choices(WORDS, k=dice.randrange(3, 14))) + "\n" for _ in range(20_000)]
