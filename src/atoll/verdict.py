"""How a guest's run ended, as the fields of a result: from its answer, or from its process's end.

SECURITY: an answer is the guest's word, and may lie in shape too: every field is checked.
"""

from __future__ import annotations

import mimetypes
import signal
from typing import TYPE_CHECKING, Any

from atoll import displays
from atoll.guest import values
from atoll.types import Artifact, ExecuteResponse, Outcome

if TYPE_CHECKING:
    from atoll.policy import ExecutionPolicy
    from atoll.types import EndReport

CANNOT_RUN = 126
"""What shells say of a program that cannot be executed."""
SHAPE_ERRORS = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What reading a value of another shape than expected can raise."""


def read_cell(answer: dict[str, Any]) -> dict[str, Any]:
    """A guest's answer as a result's fields, every one checked: the guest may lie in shape too."""
    interrupted = answer["kind"] == "interrupted"
    kind = Outcome.CANCELLED if interrupted else Outcome(answer["kind"])
    if kind not in (Outcome.OK, Outcome.ERROR, Outcome.EXITED, Outcome.CANCELLED):
        raise ValueError(kind)
    created, modified = _files(answer["files"]["created"]), _files(answer["files"]["modified"])
    memory = answer.get("memory_bytes")
    return {
        "kind": kind,
        "exit_code": int(answer["exit_code"]),
        "error": _text(answer.get("error")),
        "error_type": _text(answer.get("error_type")),
        "duration_ms": float(answer["duration_ms"]),
        "cpu_ms": float(answer["cpu_ms"]),
        "value": values.decode(answer.get("value")),
        "value_repr": _text(answer.get("value_repr")),
        "displays": displays.read(answer["displays"]) if "displays" in answer else (),
        "memory_used_bytes": None if memory is None else int(memory),
        "files_created": tuple(one.path for one in created),
        "files_modified": tuple(one.path for one in modified),
        "artifacts": created + modified,
    }


def read_shell(answer: dict[str, Any]) -> dict[str, Any]:
    """A guest's answer to a shell command as fields; the exit code is None if it has none."""
    if answer.get("interrupted") is True:
        return fault(Outcome.CANCELLED, "KeyboardInterrupt", "the command was interrupted", 130)
    if "error" in answer:
        text = f"the command could not be run: {str(answer['error'])[:1000]}"
        return fault(Outcome.ERROR, "OSError", text, CANNOT_RUN)
    code = answer["exit_code"]
    if code is not None and (type(code) is not int or code not in range(256)):
        raise ValueError(code)
    return {"kind": Outcome.OK, "exit_code": code, "error": None}


def response(fields: dict[str, Any], timeout_ms: float) -> ExecuteResponse:
    """A shell command's fields as what its caller gets."""
    kind, error = fields["kind"], fields["error"]
    if kind is Outcome.TIMEOUT:
        error = f"the command took longer than {timeout_ms:g} ms and was ended"
    elif kind is Outcome.CANCELLED:
        error = "the command was cancelled"
    elif error is not None:
        error = error.partition(": ")[2]
    if fields.get("state_lost"):
        error = f"{error}; the variables of the session are lost"
    return ExecuteResponse(
        output=fields["stdout"],
        exit_code=fields["exit_code"],
        truncated=fields["truncated"],
        error=error,
    )


def stopped(reason: Outcome, timeout_ms: float, policy: ExecutionPolicy) -> dict[str, Any]:
    """Fields of what the host has stopped."""
    if reason is Outcome.CANCELLED:
        return fault(reason, "KeyboardInterrupt", "the execution was cancelled", 130)
    if reason is Outcome.CPU:
        text = f"the CPU limit of {policy.cpu_seconds:g} s was reached"
        return fault(reason, "TimeoutError", text, 152)
    text = f"the execution took longer than {timeout_ms:g} ms"
    return fault(reason, "TimeoutError", text, 124)


def out_of_memory(policy: ExecutionPolicy) -> dict[str, Any]:
    """Fields of what was ended at its memory limit."""
    text = f"the sandbox used more than its {policy.memory_bytes:,} bytes of memory and was ended"
    return fault(Outcome.MEMORY, "MemoryError", text, 137)


def broken(violation: str) -> dict[str, Any]:
    """Fields of a guest that no longer spoke the protocol."""
    text = f"the guest broke the protocol and was ended: {violation}"
    return fault(Outcome.BROKEN, "ProtocolError", text, 70)


def death(report: EndReport) -> dict[str, Any]:
    """Fields of a guest whose process has ended by itself."""
    if report.signal is not None:
        name = _signal_name(report.signal)
        text = f"the guest's process was ended by {name}"
        return fault(Outcome.CRASHED, "ProcessCrashed", text, 128 + report.signal)
    if report.exit is None:
        text = "the guest's process has ended for an unknown reason"
        return fault(Outcome.CRASHED, "ProcessCrashed", text, 1)
    text = f"the guest's process ended itself with exit code {report.exit}"
    return fault(Outcome.EXITED, "ProcessExited", text, report.exit or 0)


def fault(kind: Outcome, error_type: str, text: str, exit_code: int) -> dict[str, Any]:
    """Fields of what went wrong."""
    error = f"{error_type}: {text}"
    return {"kind": kind, "error_type": error_type, "error": error, "exit_code": exit_code}


def _files(rows: list[Any]) -> tuple[Artifact, ...]:
    if rows == []:
        return ()
    return tuple(
        Artifact(path=str(path), size=int(size), media_type=_media_type(str(path)))
        for path, size in rows
    )


def _media_type(path: str) -> str:
    return mimetypes.guess_type(path)[0] or "application/octet-stream"


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
