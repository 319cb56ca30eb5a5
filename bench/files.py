"""Rows about files: `box.files` compared with shell commands, and a search with ripgrep.

ripgrep opens files by path; a search of a guest's folder may not, because a guest may move them.
The start of ripgrep's process is included.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import atoll
from atoll.files.folder import OpenFolders
from atoll.files.searcher import Searcher
from atoll.search.blocks import load_numpy
from bench.rows import Arms, Goal, UnavailableError, needs, row, timed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.rows import Scale

FULL_BYTES, QUICK_BYTES = 200 * 10**6, 10 * 10**6
MOST = 10_000
NEEDLE = "here is the SpecialToken_42 of it\n"
LITERAL, EXPRESSION, HARD = "SpecialToken_42", r"[A-Z]\w+Token_\d+ of", "(a+)+$"
WORDS = [
    "the", "return", "value", "of", "self", "index", "buffer", "import", "class", "error", "config",
    "session", "folder", "answer", "channel", "if", "else", "not", "None", "True", "path", "name",
]  # fmt: skip
FILL = f"""
import os
text = "some line of a text\\n" * 100
for folder in range(10):
    os.makedirs(f"ten/{{folder}}")
    for number in range(100):
        needle = {LITERAL!r} if number == 50 else ""
        open(f"ten/{{folder}}/{{number}}.txt", "w").write(text + needle)
open("long", "w").write("a line of code, more or less\\n" * 5000)
"""
AS_WE_DO = ("--no-config", "--no-ignore", "--hidden", "--no-heading", "--line-number", "--text")
GOAL = Goal(ratio=1.5, at_full_size=True)


@row(what="grep: a literal in a tree of 200 MB", against="ripgrep", rounds=20, goal=GOAL)
def grep_tree(scale: Scale) -> Iterator[Arms]:
    yield from _beside_ripgrep(scale, "tree", LITERAL)


@row(what="grep: a literal in one file of 200 MB", against="ripgrep", rounds=20, goal=GOAL)
def grep_file(scale: Scale) -> Iterator[Arms]:
    yield from _beside_ripgrep(scale, "file", LITERAL)


@row(what="grep: an expression in a tree of 200 MB", against="ripgrep", rounds=20)
def grep_tree_regex(scale: Scale) -> Iterator[Arms]:
    needs("re2", extra="search")
    yield from _beside_ripgrep(scale, "tree", EXPRESSION, regex=True)


@row(what="grep: an expression in one file of 200 MB", against="ripgrep", rounds=20)
def grep_file_regex(scale: Scale) -> Iterator[Arms]:
    needs("re2", extra="search")
    yield from _beside_ripgrep(scale, "file", EXPRESSION, regex=True)


@row(what=f"grep: {HARD} on a line of 1 MB, ended by b", against="a$ on it", rounds=20)
def grep_catastrophic(_scale: Scale) -> Iterator[Arms]:
    needs("re2", extra="search")
    with _folder() as (folder, place):
        (folder / "line").write_text("a" * 10**6 + "b\n")
        yield Arms(
            ours=timed(lambda: _count(place, HARD, "line", regex=True)),
            theirs=timed(lambda: _count(place, "a$", "line", regex=True)),
        )


@row(what="files: ls of a folder with 100 files", against="box.shell: ls -la", rounds=100)
def files_ls(_scale: Scale) -> Iterator[Arms]:
    yield from _beside_shell(lambda box: len(box.files.ls("ten/0")), "ls -la ten/0", 100)


@row(what="files: read 2,000 lines", against="box.shell: head | cat -n", rounds=100)
def files_read(_scale: Scale) -> Iterator[Arms]:
    command = "head -n 2000 long | cat -n"
    yield from _beside_shell(lambda box: box.files.read("long").count("\n") + 1, command, 2000)


@row(what="files: grep 1,000 files of 2 kB", against="box.shell: grep -rnF", rounds=50)
def files_grep(_scale: Scale) -> Iterator[Arms]:
    command = f"grep -rnF {LITERAL} ten"
    yield from _beside_shell(lambda box: len(box.files.grep(LITERAL, "ten")), command, 10)


def _beside_shell(
    ours: Callable[[atoll.SyncSandbox], int], command: str, expected: int
) -> Iterator[Arms]:
    with atoll.create_sandbox(backend="native") as box:
        assert box.execute(FILL).success

        def direct() -> None:
            assert ours(box) == expected

        def by_shell() -> None:
            assert box.shell(command).output.count("\n") >= expected

        yield Arms(ours=timed(direct), theirs=timed(by_shell))


def _beside_ripgrep(
    scale: Scale, path: str, pattern: str, *, regex: bool = False
) -> Iterator[Arms]:
    """Return both searches, which must find as many lines. numpy is loaded as after a first one."""
    needs("numpy", extra="search")
    load_numpy()
    program = shutil.which("rg")
    if program is None:
        raise UnavailableError("not installed: ripgrep, the program rg")
    with _folder() as (folder, place):
        total = QUICK_BYTES if scale.quick else FULL_BYTES
        expected = (
            _write_tree(folder / "tree", total)
            if path == "tree"
            else _write_file(folder / "file", total)
        )
        how = ["--regexp" if regex else "--fixed-strings", pattern]
        command = [program, *AS_WE_DO, *how, path]

        def theirs() -> None:
            done = subprocess.run(command, cwd=folder, capture_output=True, check=True)
            assert done.stdout.count(b"\n") == expected

        def ours() -> None:
            assert _count(place, pattern, path, regex=regex) == expected

        yield Arms(ours=timed(ours), theirs=timed(theirs))


def _count(place: OpenFolders, pattern: str, path: str, *, regex: bool) -> int:
    options = {"glob": None, "ignore_case": False, "max_results": MOST}
    answer = Searcher()(place, pattern, path, regex=regex, **options)  # type: ignore[arg-type]
    return len(answer["matches"])


@contextlib.contextmanager
def _folder() -> Iterator[tuple[Path, OpenFolders]]:
    with tempfile.TemporaryDirectory() as name:
        fd = os.open(name, os.O_PATH | os.O_DIRECTORY)
        try:
            yield Path(name), OpenFolders({"/work": fd})
        finally:
            os.close(fd)


def _write_tree(folder: Path, total: int) -> int:
    """Write files of 2 to 70 kB, one in fifty with the needle; return how many have it."""
    dice, lines = random.Random(1), _lines()
    number = written = needles = 0
    while written < total:
        where = folder / f"{number // 100}" / f"{number // 10 % 10}"
        where.mkdir(parents=True, exist_ok=True)
        text = _some(lines, dice, dice.choice((50, 200, 400, 800, 1500)))
        if number % 50 == 0:
            text, needles = text + NEEDLE, needles + 1
        written += (where / f"{number}.py").write_text(text)
        number += 1
    return needles


def _write_file(path: Path, total: int) -> int:
    dice, lines = random.Random(1), _lines()
    written = needles = 0
    with path.open("w") as file:
        while written < total:
            written += file.write(_some(lines, dice, 40_000) + NEEDLE)
            needles += 1
    return needles


def _lines() -> list[str]:
    dice = random.Random(2)
    return [" ".join(dice.choices(WORDS, k=dice.randrange(3, 14))) + "\n" for _ in range(50_000)]


def _some(lines: list[str], dice: random.Random, count: int) -> str:
    start = dice.randrange(len(lines) - count)
    return "".join(lines[start : start + count])
