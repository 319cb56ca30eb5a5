"""`input()` for guest code: reads sys.stdin, and says what to do where that has nothing."""

from __future__ import annotations

import sys

from .stdin import is_host_input

NO_KEYBOARD = (
    "input() has nothing to read: this sandbox has no keyboard. Pass the value in instead: with "
    "set_variable(), as `context`, by a tool that asks for it, or as standard input: "
    "create_sandbox(on_stdin=...), or a pipe into `atoll run`"
)


def read_line(prompt: object = "", /) -> str:
    """Read a line from standard input, without its newline; the prompt goes to stdout."""
    stdin = sys.stdin
    if stdin is None:
        raise RuntimeError("input(): lost sys.stdin")
    if prompt != "":
        sys.stdout.write(str(prompt))
        flush = getattr(sys.stdout, "flush", None)  # Python's own input() can do without
        if flush is not None:
            flush()
    line = stdin.readline()
    if not line:
        raise EOFError("EOF when reading a line" if is_host_input(stdin) else NO_KEYBOARD)
    return line[:-1] if line.endswith("\n") else line  # noqa: FURB188 - CPython 3.8


read_line.__name__ = read_line.__qualname__ = "input"
read_line.__module__ = "builtins"
