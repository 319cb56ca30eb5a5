"""Runs one cell with streamed output and Ctrl-C, and reports its result; run and repl use it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeVar

from atoll.cli.terminal.interrupts import Canceller, on_ctrl_c
from atoll.cli.terminal.streams import STREAM_LIMIT, harmless
from atoll.types import Outcome, SandboxResult

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from atoll.cli.terminal.streams import GuestOutput
    from atoll.sandbox.base import BaseSandbox
    from atoll.types import ExecuteResponse

T = TypeVar("T")
MAX_EXIT_CODE = 255
REFUSED = 2
"""The exit code if the guard refused the code: nothing ran."""


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
    _finish(output, result, end_lines=at_prompt)
    return result


async def run_command(
    box: BaseSandbox, command: str, output: GuestOutput, timeout_ms: float
) -> ExecuteResponse:
    """Run a shell command in the sandbox, at a prompt."""
    work = box.shell(command, timeout_ms=timeout_ms)
    done = await _watched(box, output, work, end_on_second=False)
    printed = SandboxResult(kind=Outcome.OK, stdout=done.output, truncated=done.truncated)
    _finish(output, printed, end_lines=True)
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


def _finish(output: GuestOutput, result: SandboxResult, *, end_lines: bool) -> None:
    if not output.finish(result, end_lines=end_lines):
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
