"""The host's half of run_shell, run_python_code and the like: arguments checked, nothing run.

SECURITY: the work is done by guest/agent/work_tools inside the sandbox. What guest code sends is
checked here, and the guest works with what is returned; code passes the same sanitiser and guard as
a cell.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Any

from atoll.agent.environment.tools import arguments
from atoll.sandbox import guard
from atoll.sandbox.tools import Tool
from atoll.text.sanitize import sanitize_code_unicode

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_SECONDS = 600.0
MOST_REPEATS = 1_000
MOST_CODE = 1 << 20
BOTH = ("code", "chain")
_LOG_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class WorkTools:
    """Checks of one session; `guard_name` is the guard that its cells pass, if they do."""

    def __init__(self, guard_name: str | None) -> None:
        self._guard = guard_name

    def run_shell(self, command: str, timeout: float = 60.0) -> dict[str, Any]:
        """Return the command, and for how long it may run."""
        if not 0 < timeout <= LONGEST_SECONDS:
            raise ValueError(f"timeout must be 0 to {LONGEST_SECONDS:.0f} seconds, not {timeout}")
        if self._guard is not None:
            raise PermissionError("run_shell is off: the cells here are checked by a guard")
        return {"command": _plain(command, "command"), "timeout": timeout}

    def run_python_code(self, code: str) -> dict[str, Any]:
        """Return the code as it may run: sanitised, and passed by the guard."""
        return {"code": self._checked(code)}

    def file_write_safe(self, path: str, content: str | bytes) -> dict[str, Any]:
        """Return path and content of a file to write."""
        if not isinstance(content, str | bytes):
            raise TypeError(f"content must be str or bytes, not {type(content).__name__}")
        return {"path": _plain(path, "path"), "content": content}

    def log_append(self, message: Any, log: str = "log") -> dict[str, Any]:
        """Return the message with the host's time, and the log that it goes to."""
        if not _LOG_NAME.fullmatch(log):
            raise ValueError(f"a log's name has letters, digits, _ and -, not {log!r:.50}")
        now = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
        return {"message": message, "log": log, "at": now}

    def benchmark_run(
        self,
        code: str,
        repeat: int = 5,
        shell: bool = False,  # noqa: FBT001, FBT002 - as guest code calls it
    ) -> dict[str, Any]:
        """Return what to time, and how often."""
        if not 1 <= repeat <= MOST_REPEATS:
            raise ValueError(f"repeat must be 1 to {MOST_REPEATS:,}, not {repeat}")
        checked = self.run_shell(code)["command"] if shell else self._checked(code)
        return {"code": checked, "repeat": repeat, "shell": shell, "timeout": LONGEST_SECONDS}

    def _checked(self, code: str) -> str:
        plain = sanitize_code_unicode(arguments.text(code, "code", MOST_CODE))
        if self._guard is None:
            return plain
        found = guard.read(plain, self._guard)
        if found.violations or not found.parsed:
            raise PermissionError(guard.describe(found.violations or (guard.unread(),)))
        return found.code


def work_tools(work: WorkTools) -> Iterator[Tool]:
    """Yield the tools; they change the sandbox's files, so they are not read-only."""
    described = (
        (work.run_shell, "run_shell(command, timeout=60)", "a shell command in the sandbox"),
        (work.run_python_code, "run_python_code(code)", "code in a namespace of its own"),
        (work.file_write_safe, "file_write_safe(path, content)", "a file, whole or not at all"),
        (work.log_append, "log_append(message, log='log')", "a line for logs/NAME.jsonl"),
        (work.benchmark_run, "benchmark_run(code, repeat=5, shell=False)", "how long code takes"),
    )
    for function, usage, what in described:
        yield Tool(
            name=function.__name__,
            function=function,
            usage=usage,
            description=what,
            allowed_callers=BOTH,
        )


def _plain(text: str, name: str) -> str:
    checked = arguments.text(text, name, MOST_CODE)
    if "\0" in checked:
        raise ValueError(f"{name} has a zero byte: leave it out")
    return checked
