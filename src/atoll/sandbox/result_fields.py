"""How a guest's run ended, as the fields of a result: from its answer, or from its process's end.

SECURITY: an answer is the guest's word, and may lie in shape too: every field is checked.
"""

from __future__ import annotations

import base64
import mimetypes
import posixpath
import signal
from typing import TYPE_CHECKING, Any, Required, TypedDict

from atoll.guest.cells.delta import MAX_FILES
from atoll.guest.cells.display import MAX_BYTES, MAX_DISPLAYS, MAX_TOTAL_BYTES, MEDIA_TYPES
from atoll.guest.cells.repl import MAX_ERROR, MAX_ERROR_ARGS, MAX_NAME, VALUE_BYTES, VALUE_ITEMS
from atoll.guest.shared import values
from atoll.types import Artifact, Display, ExecuteResponse, Outcome

if TYPE_CHECKING:
    from atoll.policy import ExecutionPolicy
    from atoll.sandbox.wire.answers import GuestAnswer
    from atoll.types import EndReport

CANNOT_RUN, NOT_FOUND = 126, 127
"""What shells say of a program that cannot be executed, and of one that is not there."""
MAX_PATH = 4096
_MAX_ENCODED = 6
"""The most values and bytes of an encoded value, for each value or byte that it stands for."""
MAX_SIZE = 1 << 63
_KINDS = {
    "ok": Outcome.OK,
    "error": Outcome.ERROR,
    "exited": Outcome.EXITED,
    "interrupted": Outcome.CANCELLED,
}
_LONGEST_ERROR = MAX_NAME + MAX_ERROR + 100
_SCALARS = (int, float, bool)
"""Types of values that are sent as they are, and are small: no message has a longer number."""
_LONGEST_REPR = values.MAX_REPR + 100
SHAPE_ERRORS = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What reading a value of another shape than expected can raise."""


class ResultFields(TypedDict, total=False):
    """The fields of a result so far."""

    kind: Required[Outcome]
    exit_code: Required[int | None]
    error: Required[str | None]
    error_type: str | None
    error_args: tuple[Any, ...]
    value: Any
    value_repr: str | None
    displays: tuple[Display, ...]
    files_created: tuple[str, ...]
    files_modified: tuple[str, ...]
    artifacts: tuple[Artifact, ...]
    stdout: str
    stderr: str
    truncated: bool
    state_lost: bool
    memory_used_bytes: int | None
    cpu_seconds: float | None


def read_cell(answer: GuestAnswer) -> ResultFields:
    """Return the fields of a result that only the guest knows; raise one of SHAPE_ERRORS.

    Time, CPU time and memory are not among them: the host measures those.
    """
    get = answer.get
    kind, code, error, error_type = _KINDS[answer["kind"]], get("exit_code"), get("error"), None
    error_args: tuple[Any, ...] = ()
    if type(code) is not int or not 0 <= code <= 255:
        raise ValueError("not an exit code")
    if kind is not Outcome.EXITED and (kind is Outcome.OK) is not (code == 0):
        raise ValueError("an exit code of another outcome")
    if error is not None or (kind is Outcome.EXITED and get("error_type") is not None):
        error_type = _text(get("error_type"), MAX_NAME)
    if error is not None:
        error = _text(error, _LONGEST_ERROR)
        if given := get("error_args"):
            error_args = tuple(_value(item) for item in _list(given, MAX_ERROR_ARGS))
    if (error is None) is not (code == 0):
        raise ValueError("an error of another outcome")
    fields: ResultFields = {
        "kind": kind,
        "exit_code": code,
        "error": error,
        "error_type": error_type,
        "error_args": error_args,
    }
    if (shown := get("value_repr")) is not None:
        fields["value_repr"] = _text(shown, _LONGEST_REPR)
        value = get("value")
        fields["value"] = value if value is None or type(value) in _SCALARS else _value(value)
    if rows := get("displays"):
        fields["displays"] = read_displays(rows)
    files = answer["files"]
    if files["created"] or files["modified"]:
        artifacts, count = _artifacts(files["created"], files["modified"]), len(files["created"])
        names = tuple(artifact.path for artifact in artifacts)
        fields["artifacts"] = artifacts
        fields["files_created"], fields["files_modified"] = names[:count], names[count:]
    return fields


def read_shell(answer: GuestAnswer) -> ResultFields:
    """Return the fields of a shell command's answer; an exit code may be missing."""
    if answer.get("interrupted") is True:
        return fault(Outcome.CANCELLED, "KeyboardInterrupt", "the command was interrupted", 130)
    if "error" in answer:
        text = f"the command could not be run: {printable(str(answer['error'])[:1000])}"
        missing = answer.get("exit_code") == NOT_FOUND
        return fault(Outcome.ERROR, "OSError", text, NOT_FOUND if missing else CANNOT_RUN)
    code = answer["exit_code"]
    if code is not None and (type(code) is not int or code not in range(256)):
        raise ValueError(code)
    return {"kind": Outcome.OK, "exit_code": code, "error": None}


def response(fields: ResultFields, timeout_ms: float, *, apart: bool) -> ExecuteResponse:
    """Return the result of a shell command from its fields."""
    kind, error = fields["kind"], fields["error"]
    if kind is Outcome.TIMEOUT:
        error = f"the command took longer than {timeout_ms:g} ms and was ended"
    elif kind is Outcome.CANCELLED:
        error = "the command was cancelled"
    elif error is not None:
        error = error.partition(": ")[2]
    if fields.get("state_lost"):
        error = f"{error}; the variables of the session are lost"
    errors = fields.get("stderr", "") if apart else ""
    return ExecuteResponse(
        output=fields.get("stdout", "") + errors,
        stderr=errors,
        exit_code=fields["exit_code"],
        truncated=fields.get("truncated", False),
        error=error,
    )


def stopped(reason: Outcome, timeout_ms: float, policy: ExecutionPolicy) -> ResultFields:
    """Fields of an execution that the host has stopped."""
    if reason is Outcome.CANCELLED:
        return fault(reason, "KeyboardInterrupt", "the execution was cancelled", 130)
    if reason is Outcome.CPU:
        text = f"the CPU limit of {policy.cpu_seconds:g} s was reached"
        return fault(reason, "TimeoutError", text, 152)
    text = f"the execution took longer than {timeout_ms:g} ms"
    return fault(reason, "TimeoutError", text, 124)


def out_of_memory(policy: ExecutionPolicy, peak: int | None) -> ResultFields:
    """Fields of an execution that ran out of memory: its own, or the host's."""
    limit = policy.memory_bytes
    if limit is None or (peak is not None and peak < limit):
        text = "the host ran out of memory, and the kernel ended the sandbox"
    else:
        text = f"the sandbox used more than its {limit:,} bytes of memory and was ended"
    return fault(Outcome.MEMORY, "MemoryError", text, 137)


def broken(violation: str) -> ResultFields:
    """Fields of a guest that no longer spoke the protocol."""
    text = f"the guest broke the protocol and was ended: {violation}"
    return fault(Outcome.BROKEN, "ProtocolError", text, 70)


def ended_by_host(reason: str) -> ResultFields:
    """Fields of a guest that the host had to end for a fault of its own."""
    text = f"the guest was ended, because {reason}"
    return fault(Outcome.CRASHED, "ProcessCrashed", text, 128 + 9)  # as by SIGKILL


def death(report: EndReport) -> ResultFields:
    """Fields of a guest whose process has ended by itself."""
    text = end_of_process(report)
    if report.signal is not None:
        return fault(Outcome.CRASHED, "ProcessCrashed", text, 128 + report.signal)
    if report.exit is None:
        return fault(Outcome.CRASHED, "ProcessCrashed", text, 1)
    return fault(Outcome.EXITED, "ProcessExited", text, report.exit or 0)


def end_of_process(report: EndReport) -> str:
    """Return a sentence that says how a guest's process ended."""
    if report.signal is not None:
        return f"the guest's process was ended by {_signal_name(report.signal)}"
    if report.exit is None:
        return "the guest's process has ended for an unknown reason"
    return f"the guest's process ended itself with exit code {report.exit}"


def fault(kind: Outcome, error_type: str, text: str, exit_code: int) -> ResultFields:
    """Fields of a failed execution."""
    error = f"{error_type}: {text}"
    return {"kind": kind, "error_type": error_type, "error": error, "exit_code": exit_code}


def _artifacts(created: list[Any], modified: list[Any]) -> tuple[Artifact, ...]:
    """Return the files of an answer; each is below the working folder, and named once."""
    if len(created) + len(modified) > 2 * MAX_FILES:
        raise ValueError("too many files")
    artifacts = tuple(_artifact(*row) for row in [*created, *modified])
    if len({artifact.path for artifact in artifacts}) != len(artifacts):
        raise ValueError("a file that is named twice")
    return artifacts


def _artifact(path: Any, size: Any) -> Artifact:
    path = check_path(path)
    return Artifact(path=path, size=check_size(size), media_type=_media_type(path))


def read_displays(rows: Any) -> tuple[Display, ...]:
    """Return an answer's displays; ValueError or TypeError if they are malformed."""
    if not isinstance(rows, list) or len(rows) > MAX_DISPLAYS:
        raise ValueError("not a list of displays")
    shown = tuple(_display(*row) for row in rows)
    if sum(len(display.data) for display in shown) > MAX_TOTAL_BYTES:
        raise ValueError("displays over the cap")
    return shown


def _display(media_type: str, encoded: str) -> Display:
    if media_type not in MEDIA_TYPES:
        raise ValueError("a display of no known kind")
    data = base64.b64decode(encoded, validate=True)
    if len(data) > MAX_BYTES:
        raise ValueError("a display over the cap")
    return Display(media_type=media_type, data=data)


def check_path(path: Any) -> str:
    """Return the name of a file; ValueError unless it is canonical and in the working folder."""
    if type(path) is not str or not 0 < len(path) <= MAX_PATH or "\0" in path:
        raise ValueError("a path that no file has")
    if path[0] == "/" or path in (".", "..") or path[:3] == "../":
        raise ValueError("a path outside of the working folder")
    if posixpath.normpath(path) != path:
        raise ValueError("a path that is not canonical")
    return path


def check_size(size: Any) -> int:
    """Return the size of a file; ValueError unless it can be one."""
    if type(size) is not int or not 0 <= size < MAX_SIZE:
        raise ValueError("a size that no file has")
    return size


def _media_type(path: str) -> str:
    return mimetypes.guess_type(path)[0] or "application/octet-stream"


def _value(encoded: Any) -> Any:
    """Return a value of a result; ValueError for one that is larger or deeper than any guest sends.

    The daemon, which passes results on, could not encode it, or would take long.
    """
    if values.is_larger(encoded, _MAX_ENCODED * VALUE_ITEMS, _MAX_ENCODED * VALUE_BYTES):
        raise ValueError("a value that is too large")
    value = values.decode_plain(encoded)
    if isinstance(encoded, list | dict | str):
        values.encode(value, VALUE_ITEMS, VALUE_BYTES)
    return value


def _list(value: Any, longest: int) -> list[Any]:
    if type(value) is not list or len(value) > longest:
        raise ValueError("not a list, or too long a one")
    return value


def _text(value: Any, longest: int) -> str:
    if type(value) is not str or len(value) > longest:
        raise ValueError("not a text, or too long a one")
    return value if value.isascii() else printable(value)


def printable(text: str) -> str:
    """Return a guest's text with lone surrogates escaped, as its output has them.

    A caller that prints or stores the text would otherwise fail on it.
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
