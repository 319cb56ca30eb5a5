"""A cell that a limit has stopped: each way to show it names the limit below the traceback."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from atoll.integrations.agent_tool import text_of
from atoll.service.core.work import RunResult
from atoll.service.dialects.e2b.interpreter import _fault_of
from atoll.service.dialects.jupyter.cell_messages import CellResult
from atoll.types import Outcome, SandboxResult, stderr_with_error

TRACE = "Traceback (most recent call last):\n  File ...\nKeyboardInterrupt\n"
LIMITS = [
    (Outcome.TIMEOUT, "TimeoutError: the execution took longer than 500 ms"),
    (Outcome.CPU, "TimeoutError: the CPU limit of 1 s was reached"),
    (Outcome.MEMORY, "MemoryError: the sandbox used more than its 5 bytes of memory and was ended"),
]


def stopped(kind: Outcome, error: str) -> SandboxResult:
    name = error.partition(":")[0]
    return SandboxResult(kind=kind, stderr=TRACE, error=error, error_type=name, exit_code=124)


@pytest.mark.parametrize(("kind", "error"), LIMITS)
def test_a_limit_is_the_last_line_for_models_and_notebooks(kind, error):
    result = stopped(kind, error)
    assert text_of(result).splitlines()[-2:] == ["KeyboardInterrupt", error]
    shown = CellResult.of(result).failure(TRACE)["traceback"]
    assert shown[-2:] == ["KeyboardInterrupt", error]
    execution: Any = SimpleNamespace(id="exe_1", session=None, queue_ms=0.0)
    trace = _fault_of(RunResult.of(execution, result))["traceback"]
    assert trace.splitlines()[-2:] == ["KeyboardInterrupt", error]
    assert f"KeyboardInterrupt\n{error}" in result._repr_html_()


@pytest.mark.parametrize(
    ("kind", "stderr", "error"),
    [
        (Outcome.ERROR, "SyntaxError: invalid syntax\n", "SyntaxError: invalid syntax (line 1)"),
        (Outcome.CANCELLED, TRACE, "KeyboardInterrupt: the execution was cancelled"),
        (Outcome.TIMEOUT, "TimeoutError: too long\n", "TimeoutError: too long"),
        (Outcome.OK, "a warning\n", None),
    ],
)
def test_an_error_that_the_traceback_names_is_not_repeated(kind, stderr, error):
    assert stderr_with_error(stderr, error, kind) == stderr


def test_an_error_without_a_traceback_is_shown_alone():
    assert stderr_with_error("", "ProcessExited: code 3", Outcome.EXITED) == "ProcessExited: code 3"
