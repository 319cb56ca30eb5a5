"""Reads cells from the keyboard, with editing, history and Tab, or from a pipe; repl uses it."""

from __future__ import annotations

import codeop
import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

from atoll.cli.terminal.tab_completion import DELIMITERS

try:
    import readline
except ImportError:  # a Python built without it: no editing, no history
    readline = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable

    Complete = Callable[[str, int], str | None]

FIRST, MORE = ">>> ", "... "
KEPT_LINES = 2000


class Prompt:
    """A source of cells. Use it in a `with` block: it loads and saves the history."""

    def __init__(self, complete: Complete | None = None) -> None:
        self.interactive = sys.stdin.isatty()
        self._history = history_path()
        self._complete = complete

    def read(self) -> str | None:
        """Return the next cell, None at the end of the input. Ctrl-C starts the cell again."""
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
        """Return an unfinished cell of a pipe; at a terminal Ctrl-D leaves."""
        if self.interactive:
            print()
            return None
        return "\n".join(lines) or None

    def __enter__(self) -> Self:
        if self.interactive and readline is not None:
            readline.set_completer_delims(DELIMITERS)
            readline.set_completer(self._complete)
            readline.parse_and_bind("tab: complete")
            readline.clear_history()
            if self._history is not None:
                with contextlib.suppress(OSError):
                    readline.read_history_file(self._history)
        return self

    def __exit__(self, *_exc: object) -> None:
        if self.interactive and readline is not None:
            readline.set_completer(None)
            if self._history is not None:
                with contextlib.suppress(OSError):  # no place for a history is not an error
                    _save(self._history)


def _save(history: Path) -> None:
    history.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    history.touch(mode=0o600)
    readline.set_history_length(KEPT_LINES)
    readline.write_history_file(history)


def is_complete(lines: list[str]) -> bool:
    """Return whether the lines are a cell; one with a syntax error is: the guest says why."""
    if lines[0].startswith("%%"):  # the lines below are its body, up to an empty one
        return len(lines) > 1 and not lines[-1].strip()
    if lines[0].startswith(("%", "!")):
        return True
    try:
        return codeop.compile_command("\n".join(lines), "<cell>", "single") is not None
    except (SyntaxError, ValueError, OverflowError):
        return True


def history_path() -> Path | None:
    """Return the history file in the user's state folder; None without a home folder."""
    state = os.environ.get("XDG_STATE_HOME") or ""
    try:
        home = Path(state) if state.startswith("/") else Path("~/.local/state").expanduser()
    except RuntimeError:
        return None
    return home / "atoll" / "history"
