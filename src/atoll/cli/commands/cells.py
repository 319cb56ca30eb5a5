"""Runs one cell with streamed output and Ctrl-C, saves its figures, and reports its result."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from atoll.cli.terminal import pictures
from atoll.cli.terminal.streams import STREAM_LIMIT, harmless
from atoll.errors import ConfigError
from atoll.types import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator

    from atoll.cli.terminal.streams import GuestOutput
    from atoll.sandbox.base import BaseSandbox
    from atoll.types import Display, ExecuteResponse, SandboxResult

INTERRUPTED = 130
AGAIN_SECONDS = 0.05
T = TypeVar("T")
MAX_EXIT_CODE = 255
REFUSED = 2
"""The exit code if the guard refused the code: nothing ran."""
SUFFIXES = {"image/png": ".png", "image/jpeg": ".jpg", "image/svg+xml": ".svg"}
MAX_FIGURES = 10_000
"""The highest number in a file's name."""


async def run_cell(
    box: BaseSandbox,
    code: str,
    output: GuestOutput,
    *,
    timeout_ms: float | None = None,
    at_prompt: bool = False,
) -> SandboxResult:
    """Run a cell. Ctrl-C cancels it, and so does an output that can no longer be written.

    With `at_prompt` its last line always gets a newline, and no Ctrl-C ends the process.
    """
    work = box.execute(code, timeout_ms=timeout_ms)
    result = await _watched(box, output, work, end_on_second=not at_prompt)
    _finish(output, end_lines=at_prompt)
    return result


async def run_command(
    box: BaseSandbox, command: str, output: GuestOutput, timeout_ms: float
) -> ExecuteResponse:
    """Run a shell command in the sandbox, at a prompt."""
    work = box.shell(command, timeout_ms=timeout_ms)
    done = await _watched(box, output, work, end_on_second=False)
    _finish(output, end_lines=True)
    return done


async def _watched(
    box: BaseSandbox, output: GuestOutput, work: Coroutine[Any, Any, T], *, end_on_second: bool
) -> T:
    canceller = Canceller(box)
    output.on_failure = canceller.start
    try:
        with on_ctrl_c(canceller.start, end_on_second=end_on_second):
            return await work
    finally:
        canceller.stop()


def _finish(output: GuestOutput, *, end_lines: bool) -> None:
    if not output.finish(end_lines=end_lines):
        complain(f"output cut: a stream has more than {STREAM_LIMIT:,} characters")


def explain(result: SandboxResult) -> str | None:
    """Return the result's error, or None if the guest's own stderr shows it already."""
    if result.error is None or (result.kind is Outcome.EXITED and not result.state_lost):
        return None
    name = (result.error_type or "").rpartition(".")[2]
    if result.kind is Outcome.ERROR and name in result.stderr:
        return None
    return result.error


def exit_code(result: SandboxResult) -> int:
    """Return the guest's exit code; never 0 for a program that did not finish."""
    if result.kind is Outcome.REFUSED:
        return REFUSED
    code = result.exit_code if 0 <= result.exit_code <= MAX_EXIT_CODE else 1
    return code or (0 if result.success else 1)


def warn_of_memory(box: BaseSandbox) -> None:
    """Say how much memory can really be used where --memory is less than Python itself needs."""
    limit, own = box.policy.memory_bytes, box.runtime_memory
    if limit is not None and limit < own:
        complain(
            f"note: --memory is {limit:,} bytes. The interpreter of backend {box.backend!r} takes "
            f"up to {own >> 20}M itself, so the limit in effect is {(own + limit) >> 20}M"
        )


def complain(text: str) -> None:
    """Print a line about a cell to stderr."""
    print(f"atoll: {harmless(text) if sys.stderr.isatty() else text}", file=sys.stderr)


class FigureFolder:
    """The folder that figures are saved to, as figure-1.png and so on; no file is overwritten."""

    def __init__(self, path: str | None) -> None:
        self._folder = Path(path or ".")
        if self._folder.exists() and not self._folder.is_dir():
            raise ConfigError(f"--figures: {path} is not a folder")

    def save(self, displays: Iterable[Display]) -> list[Path]:
        """Save the images, say so on stderr, show them if the terminal can; return the files."""
        images = [display for display in displays if display.media_type in SUFFIXES]
        paths = [self._save(image.data, SUFFIXES[image.media_type]) for image in images]
        saved = [path for path in paths if path is not None]
        if saved:
            what = "figures" if len(saved) > 1 else "figure"
            complain(f"{what} saved: {', '.join(map(str, saved))}")
        if sys.stdout.isatty():
            sys.stdout.write("".join(pictures.as_escapes(image.data) for image in images))
            sys.stdout.flush()
        return saved

    def _save(self, data: bytes, suffix: str) -> Path | None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path, file = self._create(suffix)
            with file:
                file.write(data)
        except OSError as exc:
            where = f"a figure cannot be saved in {self._folder.absolute()}: {exc.strerror}"
            complain(f"{where}. Use --figures DIR")
            return None
        return path

    def _create(self, suffix: str) -> tuple[Path, BinaryIO]:
        for number in itertools.count(1):
            path = self._folder / f"figure-{number}{suffix}"
            try:
                return path, path.open("xb")
            except FileExistsError:
                if number >= MAX_FIGURES:
                    raise
        raise AssertionError("unreachable")


class Canceller:
    """Cancels the running cell of a sandbox, once started."""

    def __init__(self, box: BaseSandbox) -> None:
        self._box = box
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Cancel the cell, now or as soon as it runs."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._cancel())

    def stop(self) -> None:
        """The cell has ended."""
        if self._task is not None:
            self._task.cancel()

    async def _cancel(self) -> None:
        while True:  # a cancel before the cell has begun does nothing
            await self._box.cancel()
            await asyncio.sleep(AGAIN_SECONDS)


@contextlib.contextmanager
def on_ctrl_c(callback: Callable[[], None], *, end_on_second: bool) -> Iterator[None]:
    """Call back in the event loop on Ctrl-C; a second one may end the process at once.

    Ending so leaves nothing behind: the jails end with the process that holds them.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as under nohup: not ours to take
        yield
        return
    loop = asyncio.get_running_loop()
    presses = 0

    def handle(_number: int, _frame: object) -> None:
        nonlocal presses
        presses += 1
        if presses > 1 and end_on_second:
            os._exit(INTERRUPTED)
        loop.call_soon_threadsafe(callback)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
