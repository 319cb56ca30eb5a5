"""One cell run for somebody at a terminal, and what its result says; run and repl use it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeVar

from atoll.cli.interrupts import Canceller, on_ctrl_c
from atoll.cli.streams import STREAM_LIMIT, harmless
from atoll.types import Outcome, SandboxResult

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from atoll.cli.streams import GuestOutput
    from atoll.sandbox import BaseSandbox
    from atoll.types import ExecuteResponse

T = TypeVar("T")
MAX_EXIT_CODE = 255


async def run_cell(
    box: BaseSandbox,
    code: str,
    output: GuestOutput,
    *,
    timeout_ms: float | None = None,
    at_prompt: bool = False,
) -> SandboxResult:
    """Run a cell. Ctrl-C cancels it, and so does an output that nobody reads any more.

    `at_prompt`: its last line is ended in any case, and no Ctrl-C ends the process.
    """
    work = box.execute(code, timeout_ms=timeout_ms)
    result = await _watched(box, output, work, end_on_second=not at_prompt)
    _finish(output, result, end_lines=at_prompt)
    return result


async def run_command(
    box: BaseSandbox, command: str, output: GuestOutput, timeout_ms: float
) -> ExecuteResponse:
    """Run a shell command beside the cells, at a prompt."""
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
    """The result's error, if the guest's own stderr does not tell it."""
    if result.error is None or (result.kind is Outcome.EXITED and not result.state_lost):
        return None
    name = (result.error_type or "").rpartition(".")[2]
    if result.kind is Outcome.ERROR and name in result.stderr:
        return None
    return result.error


def exit_code(result: SandboxResult) -> int:
    """The guest's exit code; never 0 for a program that did not come to its end."""
    code = result.exit_code if 0 <= result.exit_code <= MAX_EXIT_CODE else 1
    return code or (0 if result.success else 1)


def complain(text: str) -> None:
    """Say something about a cell on stderr."""
    print(f"atoll: {harmless(text) if sys.stderr.isatty() else text}", file=sys.stderr)
