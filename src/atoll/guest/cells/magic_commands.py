"""Runs the magics of a cell: `__magic__` of the guest's namespace comes here.

Models write a few of them; what is not here is a UsageError that says what to do instead.
"""

from __future__ import annotations

import os
import re
import sys

from . import installing, timing
from .installing import UsageError
from .magics import CAPTURE, CELL, IGNORED, SHELL, Command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Callable

    from ..shared.messages import Names

ALIASES = ("cat", "conda", "cp", "ls", "mkdir", "mv", "pip", "rm", "rmdir")
"""Line magics that are shell commands of the same name."""
LINES = ("cd", "lsmagic", "pwd", "time", "timeit")
CELLS = ("bash", "sh", "time", "timeit", "writefile")
INSTEAD = {
    "capture": "use contextlib.redirect_stdout(io.StringIO())",
    "debug": "print what you want to see",
    "env": "use os.environ",
    "file": "use %%writefile FILE",
    "html": "use display(HTML(text)) of IPython.display",
    "javascript": "use display(HTML(text)) of IPython.display",
    "latex": "use display(Latex(text)) of IPython.display",
    "load": "use open(FILE).read()",
    "memit": "use tracemalloc",
    "prun": "use cProfile.run(CODE)",
    "python": "write the code itself",
    "python3": "write the code itself",
    "reset": "use del NAME",
    "set_env": "use os.environ",
    "run": "use runpy.run_path(FILE)",
    "sql": "use sqlite3",
    "store": "variables are kept as they are",
    "sx": "use lines = !COMMAND",
    "system": "use !COMMAND",
    "who": "use dir()",
    "whos": "use dir()",
}
"""What to write instead of a magic that is refused."""
NO_SHELL = (
    "this backend has no shell: write it in Python (os.listdir, pathlib, shutil), "
    'or use create_sandbox(backend="native")'
)


class Magics:
    """The magics of one session."""

    def __init__(
        self, namespace: Names, at_end: list[Callable[[], None]], load: Callable[[str], Any]
    ) -> None:
        self._namespace, self._at_end, self._load = namespace, at_end, load

    def run(self, frame: FrameType, kind: str, text: str, body: str | None = None) -> Any:
        """Run one command for the code in `frame`."""
        if kind == SHELL:
            return self._shell(_filled_in(text, frame))
        if kind == CAPTURE:
            return self._capture(_filled_in(text, frame))
        command = Command(0, kind, text, body)
        if kind == CELL:
            return self._cell(command)
        if command.name.startswith("%"):
            raise UsageError("{}: a cell magic must be the first line of its cell".format(command))
        return self._line(command, frame)

    def _line(self, command: Command, frame: FrameType) -> Any:
        name, rest = command.name, command.rest
        if name == "time":
            return timing.time_line(rest, self._namespace)
        if name == "timeit":
            return timing.measure(rest, None, self._namespace)
        rest = rest.partition(" #")[0].strip()
        if name == "pwd":
            return os.getcwd()
        if name == "cd":
            os.chdir(os.path.expanduser(rest.strip("'\"") or "~"))
            print(os.getcwd())
        elif name == "ls" and not _has_programs():
            folders = [word for word in rest.split() if not word.startswith("-")]
            shown = sorted(name for name in os.listdir(*folders[:1]) if not name.startswith("."))
            print(*shown, sep="\n")
        elif name == "lsmagic":
            print(_supported())
        elif name in ALIASES:
            self._shell(_filled_in("{} {}".format(name, rest), frame))
        else:
            raise _unknown(command)
        return None

    def _cell(self, command: Command) -> Any:
        name, rest, body = command.name, command.rest, command.body
        if name == "time":
            self._at_end.append(timing.Clock().report)
        elif body is None:
            raise _unknown(command)
        elif name in ("bash", "sh"):
            self._shell(body)
        elif name == "timeit":
            timing.measure(rest, body, self._namespace)
        elif name == "writefile":
            _write_file(rest, body)
        else:
            raise _unknown(command)

    def _shell(self, text: str) -> None:
        """Run a shell command and print what it prints."""
        if not installing.refuse_or_settle(text):
            self._run_program(text, sys.stdout.write)

    def _capture(self, text: str) -> list[str]:
        """Run a shell command and return the lines that it prints."""
        installing.refuse_or_settle(text)
        printed: list[str] = []
        self._run_program(text, printed.append)
        return "".join(printed).splitlines()

    def _run_program(self, text: str, write: Callable[[str], Any]) -> None:
        if not _has_programs():
            raise UsageError(NO_SHELL)
        code = self._namespace["_exit_code"] = self._load("programs").run(text, write)
        if code and installing.uses_network(text) and not installing.has_network():
            sys.stderr.write("this sandbox has no network\n")


def _unknown(command: Command) -> UsageError:
    advice = INSTEAD.get(command.name, "")
    text = "{}{} is not supported here{}. There are: {}"
    what = (command.kind, command.name, advice and ": " + advice)
    return UsageError(text.format(*what, _supported()))


def _supported() -> str:
    lines = sorted({*LINES, *IGNORED, *ALIASES})
    return "%{}; %%{}; !command".format(" %".join(lines), " %%".join(CELLS))


def _has_programs() -> bool:
    return sys.platform not in ("wasi", "emscripten")


def _filled_in(text: str, frame: FrameType) -> str:
    """Return a command with {expressions} and $names of the guest's replaced by their values."""
    known = dict(frame.f_globals, **frame.f_locals)

    def value(result: Any) -> str:
        try:
            return str(eval(result[1], dict(known)))
        except Exception:
            return str(result[0])

    text = re.sub(r"(?<![${])\{([^{}\n]+)\}(?!\})", value, text)
    return re.sub(
        r"(?<!\$)\$([A-Za-z_]\w*)",
        lambda match: str(known[match[1]]) if match[1] in known else str(match[0]),
        text,
    )


def _write_file(text: str, body: str) -> None:
    words = text.split()
    mode = "a" if "-a" in words else "w"
    names = [word for word in words if not word.startswith("-")]
    if len(names) != 1:
        raise UsageError("%%writefile takes the name of one file: %%writefile [-a] FILE")
    with open(names[0], mode, encoding="utf-8") as file:
        file.write(body if body.endswith("\n") else body + "\n")
    print("Writing " + names[0] if mode == "w" else "Appending to " + names[0])
