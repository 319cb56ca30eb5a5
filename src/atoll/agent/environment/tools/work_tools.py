"""The host's half of run_shell, run_python_code and the like: arguments checked, nothing run.

SECURITY: the work is done by guest/agent/work_tools inside the sandbox. What guest code sends is
checked here, and the guest works with what is returned; code passes the same sanitiser and guard as
a cell.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from typing import Any

from atoll.agent.environment.tools import arguments
from atoll.sandbox import guard
from atoll.text.sanitize import sanitize_code_unicode

LONGEST_SECONDS = 600.0
MAX_REPEATS = 1_000
MAX_CODE = 1 << 20
_LOG_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class WorkTools:
    """Checks of one session."""

    guard: str | None
    """The name of the guard that its cells pass, if they do."""

    def run_shell(self, command: str, timeout: float = 60.0) -> dict[str, object]:
        """Return the command, and for how long it may run."""
        if not 0 < timeout <= LONGEST_SECONDS:
            raise ValueError(f"timeout must be 0 to {LONGEST_SECONDS:.0f} seconds, not {timeout}")
        if self.guard is not None:
            raise PermissionError("run_shell is off: the cells here are checked by a guard")
        return {"command": _plain(command, "command"), "timeout": timeout}

    def run_python_code(self, code: str) -> dict[str, object]:
        """Return the code as it may run: sanitised, and passed by the guard."""
        return {"code": self._checked(code)}

    def file_write_safe(self, path: str, content: str | bytes) -> dict[str, object]:
        """Return path and content of a file to write."""
        if not isinstance(content, str | bytes):
            raise TypeError(f"content must be str or bytes, not {type(content).__name__}")
        return {"path": _plain(path, "path"), "content": content}

    def log_append(self, message: Any, log: str = "log") -> dict[str, object]:
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
    ) -> dict[str, object]:
        """Return what to time, and how often."""
        if not 1 <= repeat <= MAX_REPEATS:
            raise ValueError(f"repeat must be 1 to {MAX_REPEATS:,}, not {repeat}")
        checked = self.run_shell(code)["command"] if shell else self._checked(code)
        return {"code": checked, "repeat": repeat, "shell": shell, "timeout": LONGEST_SECONDS}

    def _checked(self, code: str) -> str:
        plain = sanitize_code_unicode(arguments.text(code, "code", MAX_CODE))
        if self.guard is None:
            return plain
        result = guard.read(plain, self.guard)
        if result.violations or not result.parsed:
            raise PermissionError(guard.describe(result.violations or (guard.unread(),)))
        return result.code


def _plain(text: str, name: str) -> str:
    checked = arguments.text(text, name, MAX_CODE)
    if "\0" in checked:
        raise ValueError(f"{name} has a zero byte: leave it out")
    return checked
