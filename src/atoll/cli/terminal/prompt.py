"""Reads cells from the keyboard, with editing, history and Tab, or from a pipe; repl uses it.

SECURITY: the guest answers Tab with text. It is capped, and only lines that look like names are
used.
"""

from __future__ import annotations

import builtins
import codeop
import contextlib
import inspect
import keyword
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from atoll.concurrency import forks
from atoll.errors import AtollError

try:
    import readline
except ImportError:  # a Python built without it: no editing, no history
    readline = None  # type: ignore[assignment]

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from atoll.cli.terminal.editor import Editor
    from atoll.cli.terminal.streams import GuestOutput
    from atoll.sandbox.base import BaseSandbox

DELIMITERS = " \t\n`~@#$^&*()-=+[{]}\\|;:'\",<>/?"
"""What ends a word: not the dot of an attribute, not the % and ! of a command."""
TIMEOUT_MS = 5_000
MAX_NAMES, MAX_NAME = 200, 200
MAX_ANSWER = 64_000
INDENT = "    "
_IMPORT = re.compile(r"\s*(import|from)\s+\Z")
_LAST_WORD = re.compile(rf"[^{re.escape(DELIMITERS)}]*\Z")
_WORD = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*\.?\Z")
FIRST, MORE = ">>> ", "... "
KEPT_LINES = 2000


class Prompt:
    """A source of cells. Use it in a `with` block: it loads and saves the history."""

    def __init__(self, completer: Completer | None = None) -> None:
        self.interactive = sys.stdin.isatty()
        self._history = history_path()
        self._completer = completer
        self._editor = self._find_editor() if self.interactive else None

    def _find_editor(self) -> Editor | None:
        """Return the editor of the extra `repl`, if it is here and the terminal can show it."""
        if os.environ.get("TERM", "dumb") == "dumb":
            return None
        try:
            from atoll.cli.terminal.editor import Editor  # noqa: PLC0415 - it needs an extra
        except ImportError:
            return None
        matches = self._completer.at_end_of if self._completer else None
        cells = self._history.with_name("cells") if self._history else None
        return Editor(FIRST, MORE, matches, cells)

    def read(self) -> str | None:
        """Return the next cell, None at the end of the input. Ctrl-C starts the cell again."""
        while self._editor is not None:
            try:
                return self._editor.read()
            except KeyboardInterrupt:
                continue
            except EOFError:
                return None
            finally:
                if self._completer:
                    self._completer.wait()
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
        if self._reads_lines:
            readline.set_completer_delims(DELIMITERS)
            readline.set_completer(self._completer.complete if self._completer else None)
            readline.parse_and_bind("tab: complete")
            readline.clear_history()
            if self._history is not None:
                with contextlib.suppress(OSError):
                    readline.read_history_file(self._history)
        return self

    @property
    def _reads_lines(self) -> bool:
        return self.interactive and self._editor is None and readline is not None

    def __exit__(self, *_exc: object) -> None:
        if self._reads_lines:
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


class Completer:
    """Answers readline: `complete` is called with a word and 0, 1, 2 ... until it returns None."""

    def __init__(
        self, runner: asyncio.Runner, box: BaseSandbox, output: GuestOutput, commands: Sequence[str]
    ) -> None:
        self._runner, self._box, self._output = runner, box, output
        self._commands = commands
        self._matches: list[str] = []
        self._asking = forks.new_lock()

    def complete(self, word: str, number: int) -> str | None:
        """Return the match with that number; None after the last."""
        if number == 0:
            self._matches = self.matches(word, readline.get_line_buffer()[: readline.get_begidx()])
        return self._matches[number] if number < len(self._matches) else None

    def at_end_of(self, line: str) -> tuple[str, list[str]]:
        """Return the last word of a line, and what it can become."""
        word = _LAST_WORD.search(line)[0]  # type: ignore[index] # it matches an empty word too
        return word, self.matches(word, line.removesuffix(word))

    def wait(self) -> None:
        """Wait for the guest's answer to a Tab, if another thread asks: one cell runs at a time."""
        with self._asking:
            pass

    def matches(self, word: str, before: str = "") -> list[str]:
        """Return what the word can become: a command, a keyword, a name, an attribute, a module."""
        if word.startswith("%"):
            return [command for command in self._commands if command.startswith(word)]
        if _IMPORT.match(before):
            return self._in_guest(word, _atoll_modules)
        if not _WORD.match(word):
            return [] if word else [INDENT]
        own = () if "." in word else (*keyword.kwlist, *dir(builtins))
        hidden = word.rpartition(".")[2].startswith("_")
        near = {name for name in own if name.startswith(word) and (hidden or name[0] != "_")}
        return sorted({*near, *self._in_guest(word, _atoll_names)})[:MAX_NAMES]

    def _in_guest(self, word: str, printer: Callable[[str, int], None]) -> list[str]:
        """Return names in the guest; nothing if it does not answer in time or refuses the cell."""
        with self._asking:
            self._output.muted = True
            cell = self._box.execute(_cell(printer, word), timeout_ms=TIMEOUT_MS)
            try:
                result = self._runner.run(cell)
            except AtollError:
                return []
            finally:
                self._output.muted = False
        owner, dot, _ = word.rpartition(".")
        lines = result.stdout[:MAX_ANSWER].splitlines()[:MAX_NAMES]
        names = [line for line in lines if line.isidentifier() and len(line) <= MAX_NAME]
        matches = [f"{owner}{dot}{name}" for name in names]
        return [item for item in matches if item.startswith(word)]


def _cell(printer: Callable[[str, int], None], word: str) -> str:
    """Return the code to run in the guest; it leaves no name behind."""
    name = printer.__name__
    call = f"try: {name}({word!r}, {MAX_NAMES})\nfinally: del {name}"
    lines = ("from __future__ import annotations", inspect.getsource(printer), call)
    return "\n".join(lines)


def _atoll_modules(start: str, most: int) -> None:
    """Print the modules that can be imported. This runs in the guest."""
    import pkgutil  # noqa: PLC0415 - the guest has only the source of this function
    import sys  # noqa: PLC0415

    names = {module.name for module in pkgutil.iter_modules()} | set(sys.builtin_module_names)
    shown = [name for name in names if name.startswith(start) and (start or name[0] != "_")]
    sys.stdout.write("\n".join(sorted(shown)[:most]) + "\n")


def _atoll_names(word: str, most: int) -> None:
    """Print the names that complete `word`. This runs in the guest, on Python 3.8 and newer.

    Attributes are looked up in the dictionaries of objects and classes: no property, __getattr__
    or __dir__ of the guest's is called.
    """
    import builtins  # noqa: PLC0415 - the guest has only the source of this function
    import sys  # noqa: PLC0415

    def spaces(owner: Any) -> Any:
        kind = type(owner)
        if issubclass(kind, type):
            return [type.__getattribute__(cls, "__dict__") for cls in type.mro(owner)]
        try:
            own = [object.__getattribute__(owner, "__dict__")]
        except AttributeError:
            own = []
        return own + [type.__getattribute__(cls, "__dict__") for cls in type.mro(kind)]

    def find(name: str, where: Any) -> Any:
        for space in where:
            if name in space:
                return [] if hasattr(type(space[name]), "__get__") else spaces(space[name])
        return []

    path = word.split(".")
    where: Any = [sys.modules["__main__"].__dict__, vars(builtins)]
    for name in path[:-1]:
        where = find(name, where)
    start = path[-1]
    names = {key for space in where for key in space if isinstance(key, str)}
    shown = [n for n in names if n.startswith(start) and (start[:1] == "_" or n[:1] != "_")]
    sys.stdout.write("\n".join(sorted(shown)[:most]) + "\n")
