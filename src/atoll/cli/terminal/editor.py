"""The editor of the prompt, with the extra `repl`: whole blocks, colours, completion, history."""

from __future__ import annotations

import codeop
import os
import sys
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import Completer, Completion, ThreadedCompleter
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.lexers import PygmentsLexer
from prompt_toolkit.output import ColorDepth
from pygments.lexers.python import PythonLexer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyPressEvent

    Matches = Callable[[str], tuple[str, list[str]]]
    """Returns the word at the end of a line, and what it can become."""

INDENT = 4
LEAVING = ("return", "pass", "break", "continue", "raise")
"""Statements after which a block is usually over."""


class Editor:
    """Reads one cell at a time; a pasted block stays whole, with its blank lines."""

    def __init__(
        self, first: str, more: str, matches: Matches | None, history: Path | None
    ) -> None:
        self._session: PromptSession[str] = PromptSession(
            first,
            multiline=True,
            prompt_continuation=more,
            lexer=PygmentsLexer(PythonLexer),
            completer=ThreadedCompleter(GuestCompleter(matches)) if matches else None,
            complete_while_typing=False,
            history=_history(history),
            key_bindings=_keys(),
            color_depth=ColorDepth.DEPTH_1_BIT if os.environ.get("NO_COLOR") else None,
        )

    def read(self) -> str:
        """Return a cell; EOFError on Ctrl-D, KeyboardInterrupt on Ctrl-C."""
        cell: str = self._session.prompt()
        return cell.rstrip()


class GuestCompleter(Completer):  # type: ignore[misc] # its types are not read
    """Offers the names of the guest on Tab."""

    def __init__(self, matches: Matches) -> None:
        self._matches = matches

    def get_completions(self, document: Document, _event: CompleteEvent) -> Iterator[Completion]:
        """Yield what the word before the cursor can become."""
        word, offered = self._matches(document.current_line_before_cursor)
        for text in offered:
            yield Completion(text, start_position=-len(word))


def is_whole(text: str) -> bool:
    """Return whether Enter runs a cell: it can be compiled, and no block is open at its end."""
    last = text.rpartition("\n")[2]
    if text.startswith("%%"):
        return "\n" in text and not last.strip()
    if text.startswith(("%", "!")):
        return True
    try:
        if codeop.compile_command(text, "<cell>", "exec") is None:
            return False
    except (SyntaxError, ValueError, OverflowError):  # the guest says why
        return True
    return "\n" not in text or not last.strip() or not last[:1].isspace()


def indent_after(line: str) -> str:
    """Return the spaces that the next line begins with."""
    depth = len(line) - len(line.lstrip())
    words = line.split()
    if line.rstrip().endswith(":"):
        depth += INDENT
    elif words and words[0] in LEAVING:
        depth -= INDENT
    return " " * max(0, depth)


def _keys() -> KeyBindings:
    keys = KeyBindings()
    keys.add("enter")(_on_enter)
    keys.add("tab", filter=Condition(_is_at_indent))(_on_indent)
    return keys


def _on_enter(event: KeyPressEvent) -> None:
    buffer = event.current_buffer
    if buffer.complete_state:  # what Tab has chosen is taken
        buffer.complete_state = None
    elif buffer.document.text_after_cursor.strip() or not is_whole(buffer.text):
        buffer.insert_text("\n" + indent_after(buffer.document.current_line_before_cursor))
    else:
        buffer.validate_and_handle()


def _on_indent(event: KeyPressEvent) -> None:
    event.current_buffer.insert_text(" " * INDENT)


def _is_at_indent() -> bool:
    return not get_app().current_buffer.document.current_line_before_cursor.strip()


def _history(path: Path | None) -> History:
    """Return the history in a file that only its user can read; without a place, that of a run."""
    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
    except OSError as exc:
        print(f"atoll: the history is not kept: {exc.strerror}", file=sys.stderr)
        return InMemoryHistory()
    return FileHistory(path)
