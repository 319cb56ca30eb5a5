"""Runs the magics of a cell: `__magic__` of the guest's namespace comes here.

What this backend cannot do is a UsageError that says what to do instead.
"""

from __future__ import annotations

import os
import sys

from ..shared.values import short_repr
from . import installing, timing
from .magics import CAPTURE, CELL, HELP, IGNORED, LINE, SHELL, Command
from .usage import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Callable

ALIASES = ("cat", "cp", "ls", "ll", "mkdir", "mv", "rm", "rmdir")
"""Line magics that are shell commands of the same name."""
SHELL_CELLS = ("bash", "sh")
NO_SHELL = (
    "this backend has no shell: write it in Python (os.listdir, pathlib, shutil), "
    'or use create_sandbox(backend="native")'
)


class Magics:
    """The magics of one session."""

    def __init__(
        self,
        namespace: dict[str, Any],
        own: Callable[[], dict[str, Any]],
        at_end: list[Callable[[], None]],
        load: Callable[[str], Any],
    ) -> None:
        self._namespace, self._at_end, self._load = namespace, at_end, load
        self._own = own
        self._lines: dict[str, Callable[[str], Any]] = {
            "time": lambda code: timing.time_line(code, namespace),
            "timeit": lambda code: timing.timeit_line(code, namespace),
            "cd": _change_folder,
            "pwd": lambda _: os.getcwd(),
            "env": _environment,
            "set_env": _environment,
            "pip": lambda text: self._shell("pip " + text, None),
            "conda": lambda text: self._shell("conda " + text, None),
            "sx": lambda text: self._capture(text, None),
            "system": lambda text: self._shell(text, None),
            "run": self._run_file,
            "who": lambda _: print(*self._names(), sep="   "),
            "whos": lambda _: print(*self._described(), sep="\n"),
            "lsmagic": lambda _: print(self.supported()),
        }
        self._cells: dict[str, Callable[[str, str], Any]] = {
            "timeit": lambda setup, body: timing.timeit_cell(setup, body, namespace),
            "writefile": _write_file,
            "file": _write_file,
        }

    def supported(self) -> str:
        """Return the names of all magics."""
        lines = sorted({*self._lines, *IGNORED, *ALIASES})
        cells = sorted({"time", "capture", *self._cells, *SHELL_CELLS})
        return "%{}; %%{}; !command".format(" %".join(lines), " %%".join(cells))

    def run(self, frame: FrameType, kind: str, text: str, body: str | None = None) -> Any:
        """Run one command for the code in `frame`."""
        if kind == SHELL:
            return self._shell(text, frame)
        if kind == CAPTURE:
            return self._capture(text, frame)
        if kind == HELP:
            return self._help(text)
        return self._magic(Command(0, kind, text, body), frame)

    def _magic(self, command: Command, frame: FrameType) -> Any:
        name, rest = command.name, command.rest
        if command.kind == CELL:
            return self._cell_magic(command)
        if command.kind != LINE or name.startswith("%"):
            raise UsageError("{}: a cell magic must be the first line of its cell".format(command))
        if name in IGNORED:
            return None
        if name == "ls" and not _has_programs():
            return print(*_listed(rest), sep="\n")
        if name in ALIASES:
            return self._shell("{} {}".format("ls -l" if name == "ll" else name, rest), frame)
        if name not in self._lines:
            raise self._unknown(command)
        return self._lines[name](rest if name.startswith("time") else _without_comment(rest))

    def _cell_magic(self, command: Command) -> Any:
        name, rest, body = command.name, command.rest, command.body
        if name == "time":
            self._at_end.append(timing.Clock().report)
        elif name == "capture":
            self._capture_cell(rest)
        elif name in SHELL_CELLS and body is not None:
            self._shell(body, None)
        elif name in self._cells and body is not None:
            return self._cells[name](rest, body)
        else:
            raise self._unknown(command)
        return None

    def _unknown(self, command: Command) -> UsageError:
        text = "{}{} is not supported here. There are: {}"
        return UsageError(text.format(command.kind, command.name, self.supported()))

    def _shell(self, text: str, frame: FrameType | None) -> None:
        """Run a shell command and print what it prints."""
        text = text if frame is None else _filled_in(text, frame)
        if installing.refuse_or_settle(text):
            return
        self._ran(text, self._programs().run(text, sys.stdout.write))

    def _capture(self, text: str, frame: FrameType | None) -> list[str]:
        """Run a shell command and return the lines that it prints."""
        text = text if frame is None else _filled_in(text, frame)
        installing.refuse_or_settle(text)
        printed: list[str] = []
        self._ran(text, self._programs().run(text, printed.append))
        return "".join(printed).splitlines()

    def _programs(self) -> Any:
        """Return what runs shell commands; UsageError in a backend that has no processes."""
        if not _has_programs():
            raise UsageError(NO_SHELL)
        return self._load("programs")

    def _ran(self, text: str, code: int | None) -> None:
        self._namespace["_exit_code"] = code
        if code and installing.uses_network(text) and not installing.has_network():
            sys.stderr.write("this sandbox has no network\n")

    def _help(self, name: str) -> None:
        """Print the help text of a name, as help() does."""
        try:
            value = eval(name, self._namespace)
        except Exception:
            raise UsageError("no {!r} to show help for".format(name)) from None
        help(value)

    def _capture_cell(self, rest: str) -> None:
        """Keep what the cell prints from here on, in the variable that is named."""
        import io

        words = [word for word in rest.split() if not word.startswith("--")]
        if len(words) > 1 or not all(word.isidentifier() for word in words):
            raise UsageError("%%capture takes the name of one variable: %%capture NAME")
        before, streams = (sys.stdout, sys.stderr), (io.StringIO(), io.StringIO())
        sys.stdout, sys.stderr = streams

        def restore() -> None:
            sys.stdout, sys.stderr = before
            if words:
                self._namespace[words[0]] = Captured(*(one.getvalue() for one in streams))

        self._at_end.append(restore)

    def _run_file(self, text: str) -> None:
        """Run a file of the sandbox as a script, in the session's namespace."""
        import shlex

        words = shlex.split(text)
        if not words or words[0].startswith("-"):
            raise UsageError("%run takes a file, and its arguments: %run script.py")
        with open(os.path.expanduser(words[0]), "rb") as file:
            code = compile(file.read(), words[0], "exec", dont_inherit=True)
        before, sys.argv = sys.argv, words
        try:
            exec(code, self._namespace)
        finally:
            sys.argv = before

    def _described(self) -> list[str]:
        """Return a line for each variable: its name, its type and the beginning of its value."""
        found = {name: self._namespace[name] for name in self._names()}
        return [
            "{:<16}{:<16}{}".format(name, type(value).__name__, short_repr(value)[:60])
            for name, value in found.items()
        ]

    def _names(self) -> list[str]:
        return sorted(name for name in self._own() if not name.startswith("_"))


class Captured:
    """What a cell with %%capture printed."""

    def __init__(self, stdout: str, stderr: str) -> None:
        self.stdout, self.stderr = stdout, stderr

    def show(self) -> None:
        """Print it now."""
        sys.stdout.write(self.stdout)
        sys.stderr.write(self.stderr)

    __call__ = show

    def __str__(self) -> str:
        return self.stdout


Captured.__module__ = "__main__"


def _has_programs() -> bool:
    return sys.platform not in ("wasi", "emscripten")


def _listed(text: str) -> list[str]:
    """Return the names in a folder, as `ls` prints them."""
    folders = [word for word in text.split() if not word.startswith("-")]
    return sorted(name for name in os.listdir(*folders[:1]) if not name.startswith("."))


def _filled_in(text: str, frame: FrameType) -> str:
    """Return a command with {expressions} and $names of the guest's replaced by their values."""
    import re

    known = dict(frame.f_globals, **frame.f_locals)

    def value(found: Any) -> str:
        try:
            return str(eval(found[1], dict(known)))
        except Exception:
            return str(found[0])

    text = re.sub(r"(?<![${])\{([^{}\n]+)\}(?!\})", value, text)
    return re.sub(
        r"(?<!\$)\$([A-Za-z_]\w*)",
        lambda found: str(known[found[1]]) if found[1] in known else str(found[0]),
        text,
    )


def _without_comment(text: str) -> str:
    return text.partition(" #")[0].strip()


def _change_folder(text: str) -> None:
    os.chdir(os.path.expanduser(text.strip("'\"") or "~"))
    print(os.getcwd())


def _environment(text: str) -> Any:
    if not text:
        return dict(os.environ)
    for sign in ("=", " "):
        name, found, value = text.partition(sign)
        if found:
            os.environ[name.strip()] = value.strip()
            print("env: {}={}".format(name.strip(), value.strip()))
            return None
    if text not in os.environ:
        raise UsageError("no environment variable {!r}".format(text))
    return os.environ[text]


def _write_file(text: str, body: str) -> None:
    words = text.split()
    mode = "a" if "-a" in words else "w"
    names = [word for word in words if not word.startswith("-")]
    if len(names) != 1:
        raise UsageError("%%writefile takes the name of one file: %%writefile [-a] FILE")
    with open(names[0], mode, encoding="utf-8") as file:
        file.write(body if body.endswith("\n") else body + "\n")
    print("Writing " + names[0] if mode == "w" else "Appending to " + names[0])
