"""Reads cells from the keyboard, with editing and history, or from a pipe; the repl uses it."""

from __future__ import annotations

import codeop
import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

try:
    import readline
except ImportError:  # a Python built without it: no editing, no history
    readline = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from types import TracebackType

FIRST, MORE = ">>> ", "... "
KEPT_LINES = 2000


class Prompt:
    """A source of cells. In a `with` block, as it loads and keeps the history."""

    def __init__(self) -> None:
        self.interactive = sys.stdin.isatty()
        self._history = history_path()

    def read(self) -> str | None:
        """The next cell; None at the end of the input. Ctrl-C starts the cell afresh."""
        lines: list[str] = []
        while True:
            try:
                lines.append(self._line(MORE if lines else FIRST))
            except KeyboardInterrupt:
                print()
                lines = []
                continue
            except EOFError:
                return self._at_end(lines)
            if is_complete(lines):
                return "\n".join(lines)

    def _line(self, prompt: str) -> str:
        return input(prompt if self.interactive else "")

    def _at_end(self, lines: list[str]) -> str | None:
        """A cell that a pipe left open is a cell; at a terminal Ctrl-D leaves."""
        if self.interactive:
            print()
            return None
        return "\n".join(lines) or None

    def __enter__(self) -> Self:
        if self.interactive and readline is not None:
            readline.parse_and_bind("tab: tab-insert")  # the host's file names are no completion
            readline.clear_history()
            with contextlib.suppress(OSError):
                readline.read_history_file(self._history)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.interactive and readline is not None:
            with contextlib.suppress(OSError):  # a history that cannot be kept is no error
                self._save()

    def _save(self) -> None:
        self._history.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._history.touch(mode=0o600)
        readline.set_history_length(KEPT_LINES)
        readline.write_history_file(self._history)


def is_complete(lines: list[str]) -> bool:
    """Whether the lines are a cell; one that cannot compile is, so that the guest says why."""
    if lines[0].startswith(("%", "!")):
        return True
    try:
        return codeop.compile_command("\n".join(lines), "<cell>", "single") is not None
    except (SyntaxError, ValueError, OverflowError):
        return True


def history_path() -> Path:
    """Where the history is kept: in the user's folder for state."""
    state = os.environ.get("XDG_STATE_HOME") or ""
    home = Path(state) if state.startswith("/") else Path("~/.local/state").expanduser()
    return home / "atoll" / "history"
