"""Lines as notebooks have them, `!ls` and `%time f()`, rewritten as Python that calls `__magic__`.

Guests run the result; on the host, guards look at it. Only code that is not Python is given to
this, and of it only lines that no Python has: a `%` or `!` at the start of a statement. Text in
strings, brackets and continued lines is left alone. Every line keeps its number.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

NAME = "__magic__"
SHELL, CAPTURE, LINE, CELL, HELP = "!", "!=", "%", "%%", "?"
IGNORED = frozenset({"matplotlib", "load_ext", "reload_ext", "autoreload", "config"})
"""Line magics that have nothing to do here: figures are shown, modules are not reloaded."""
PYTHON_LINES = frozenset({"time", "timeit"})
"""Line magics whose argument is Python."""
PYTHON_CELL = "time"
"""The cell magic after whose line the cell goes on as Python."""

_WANTED = re.compile(r"^[ \t]*[!%?]|\?[ \t\r]*$|=[ \t]*[!%]", re.MULTILINE)
_STATEMENT = re.compile(r"([ \t]*)(!!?|%%?|\?\??)(.*)", re.DOTALL)
_MAGIC_NAME = re.compile(r"[A-Za-z_]\w*\??")
_ASSIGNMENT = re.compile(r"([ \t]*[A-Za-z_][^=!()\"'#]*?=)[ \t]*([!%])(?!=)(.*)", re.DOTALL)
_OPTIONS = re.compile(r"(?:-[nr]\s*\d+(?:\s+|\Z)|-[a-z]+\s+)*")
_QUESTION = re.compile(r"([ \t]*)([A-Za-z_][\w.]*)\?\??[ \t]*")
_DOTTED = re.compile(r"[A-Za-z_][\w.]*")
_TOKEN = re.compile(r"#.*|\"\"\"|'''|[\"'\[({\])}]")
_ENDS = {
    quote: re.compile(r"(?:[^{0}\\]|\\.|{0}(?!{0}{0}))*{1}".format(quote[0], quote))
    for quote in ('"""', "'''")
}
_ENDS.update((quote, re.compile(r"(?:[^{0}\\]|\\.)*{0}".format(quote))) for quote in "\"'")


class Command:
    """One magic of a cell: what it is, its text, and the rest of the cell if that is its own."""

    def __init__(self, line: int, kind: str, text: str, body: str | None = None) -> None:
        self.line, self.kind, self.body = line, kind, body
        self.text = text.strip() if kind in (LINE, CELL, HELP) else text

    @property
    def name(self) -> str:
        """The name of a line or cell magic, without its arguments."""
        return self.text.split(None, 1)[0] if self.text else ""

    @property
    def rest(self) -> str:
        """What follows the name."""
        return self.text[len(self.name) :].strip()

    def __str__(self) -> str:
        """As it was written, shortened."""
        kind = SHELL if self.kind == CAPTURE else self.kind
        return (kind + self.text)[:60]


def is_ignored(command: Command) -> bool:
    """Return whether a command has nothing to do here."""
    return command.kind == LINE and command.name in IGNORED


def without_options(text: str) -> str:
    """Return the code of `-n 10 -r3 code`."""
    return _OPTIONS.sub("", text, 1)


def as_call(command: Command) -> str:
    """Return the Python that runs a command."""
    if is_ignored(command):
        return "None"
    if command.kind == HELP:
        return "help({})".format(command.text)
    body = "" if command.body is None else ", {!r}".format(command.body)
    return "{}({!r}, {!r}{})".format(NAME, command.kind, command.text, body)


def translate(
    code: str, render: Callable[[Command], str] = as_call
) -> tuple[str, list[Command]] | None:
    """Return the code as Python and the commands in it; None if it has none."""
    if not _WANTED.search(code):
        return None
    reader = _Reader(code.split("\n"), render)
    reader.read()
    return ("\n".join(reader.written), reader.commands) if reader.commands else None


class _Reader:
    """Goes through the lines once and keeps track of strings, brackets and continued lines."""

    def __init__(self, lines: list[str], render: Callable[[Command], str]) -> None:
        self._lines, self._render = lines, render
        self._at = 0
        self._quote, self._depth, self._continued = "", 0, False
        self.written: list[str] = []
        self.commands: list[Command] = []

    def read(self) -> None:
        self._read_cell_magic()
        while self._at < len(self._lines):
            line = self._lines[self._at]
            starts = not (self._quote or self._depth or self._continued)
            if not (starts and self._read_command(line.rstrip("\r"))):
                self._scan(line.rstrip("\r"))
                self.written.append(line)
                self._at += 1

    def _read_cell_magic(self) -> None:
        """Take `%%name` if the cell starts with it; only empty lines and comments may precede."""
        while self._at < len(self._lines) and self._lines[self._at].strip()[:1] in ("", "#"):
            self.written.append(self._lines[self._at])
            self._at += 1
        line = self._lines[self._at].strip() if self._at < len(self._lines) else ""
        if not line.startswith(CELL) or not _MAGIC_NAME.match(line[2:]):
            return
        name = line[2:].split(None, 1)[0]
        body = None if name == PYTHON_CELL else "\n".join(self._lines[self._at + 1 :])
        self._write("", Command(self._at + 1, CELL, line[2:], body))
        if body is not None:
            self._at = len(self._lines)

    def _read_command(self, line: str) -> bool:
        """Take a line if it is a command; whether it was."""
        number = self._at + 1
        if match := _STATEMENT.fullmatch(line):
            indent, sign, text = match.groups()
            kind = {"!": SHELL, "!!": CAPTURE, "?": HELP, "??": HELP}.get(sign, LINE)
            if kind == LINE and not _MAGIC_NAME.match(text):
                return False
            if kind == HELP and not _DOTTED.fullmatch(text.strip()):
                return False
            text = (sign[1:] if kind == LINE else "") + self._whole(text)
            self._write(indent, Command(number, kind, text))
        elif match := _ASSIGNMENT.fullmatch(line):
            target, sign, text = match.groups()
            if sign == LINE and not _MAGIC_NAME.match(text):
                return False
            kind = CAPTURE if sign == SHELL else LINE
            self._write(target + " ", Command(number, kind, self._whole(text)))
        elif match := _QUESTION.fullmatch(line):
            self._write(match[1], Command(number, HELP, match[2]))
        else:
            return False
        return True

    def _whole(self, text: str) -> str:
        """Return the text of a command with the lines that it goes on in; they become empty."""
        ahead = self._at + 1
        while text.endswith("\\") and ahead < len(self._lines):
            text = text[:-1] + self._lines[ahead].rstrip("\r")
            ahead += 1
        self._blank = ahead - self._at - 1
        return text

    _blank = 0

    def _write(self, before: str, command: Command) -> None:
        self.commands.append(command)
        self.written.append(before + self._render(command))
        self.written += [""] * self._blank
        self._at += 1 + self._blank
        self._blank = 0

    def _scan(self, line: str) -> None:
        """Follow strings and brackets through a line of Python."""
        self._continued, at = False, 0
        while True:
            if self._quote:
                end = _ENDS[self._quote].match(line, at)
                if end is None:
                    if len(self._quote) == 1 and not line.endswith("\\"):
                        self._quote = ""  # it is not closed: Python will complain
                    return
                self._quote, at = "", end.end()
            token = _TOKEN.search(line, at)
            if token is None:
                self._continued = line.endswith("\\")
                return
            at, sign = token.end(), token[0]
            if sign[0] == "#":
                return
            if sign[0] in "\"'":
                self._quote = sign
            else:
                self._depth = max(0, self._depth + (1 if sign in "[({" else -1))
