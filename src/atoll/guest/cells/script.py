"""Runs code as `python main.py < input` does: in a module of its own, with an interpreter's end.

A cell of a session has more than a program has: names that the host offers, preloaded modules,
magics and `await`. A judge of programs must not see them work.
"""

from __future__ import annotations

import builtins
import io
import os
import sys

from ..core import stdin
from . import shell
from .repl import COMPILER_ERRORS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from ..shared.messages import Outcome
    from .repl import Repl

NAME = "main.py"


class Input:
    """Bytes that guest code and its children read from descriptor 0, while in `with`."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __enter__(self) -> None:
        self._kept = os.dup(0)
        given = shell.unnamed_file(self._data)
        os.dup2(given, 0)
        os.close(given)
        open_stdin()

    def __exit__(self, *_exc: object) -> None:
        try:
            os.dup2(self._kept, 0)
            os.close(self._kept)
        except OSError:  # guest code has closed descriptors
            pass


def open_stdin() -> None:
    """Have sys.stdin read descriptor 0."""
    raw = io.FileIO(0, closefd=False)
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(  # type: ignore[misc]
        io.BufferedReader(raw), encoding="utf-8", errors="surrogateescape"
    )


def run(repl: Repl, code: str, folder: str) -> Outcome:
    """Run a program; its exceptions and its exit code are the outcome. It is the guest's last."""
    path = os.path.join(folder, NAME)
    try:
        module = _prepare(repl, code, path)
        compiled = compile(code, path, "exec", dont_inherit=True)
    except (KeyboardInterrupt, OSError, *COMPILER_ERRORS) as exc:
        return repl.failed(exc)
    outcome: Outcome = {"kind": "ok", "exit_code": 0}
    try:
        repl.before_code()
        try:
            eval(compiled, vars(module))
        except BaseException as exc:
            outcome = repl.failed(exc)
        _end(module)
    except KeyboardInterrupt as exc:
        return repl.failed(exc)
    finally:
        repl.after_code()
    return outcome


def _prepare(repl: Repl, code: str, path: str) -> ModuleType:
    """Take away what a session has, write the program's file and return its module."""
    for name in repl.offered:
        vars(builtins).pop(name, None)
    builtins.input = stdin.python_input
    with io.open(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        file.write(code)
    module = type(sys)("__main__")
    vars(module).update(__file__=path, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = module
    sys.argv[:] = [path]
    folder = os.path.dirname(path)
    sys.path[:] = [folder] + [known for known in sys.path if known != folder]
    open_stdin()
    sys.stdout = sys.__stdout__ = _block_writer(1)  # type: ignore[misc]
    repl.be_script(path, code, module)
    return module


def _block_writer(fd: int) -> io.TextIOWrapper:
    """Return a stream as an interpreter has it on a pipe: lines are not written one by one."""
    raw = io.FileIO(fd, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="surrogateescape")


def _end(module: ModuleType) -> None:
    """End as an interpreter does: wait for threads, run exit functions, close files."""
    try:
        threading = sys.modules.get("threading")
        if threading is not None:
            threading._shutdown()  # noqa: SLF001 - executors too
        import atexit

        atexit._run_exitfuncs()  # noqa: SLF001 - what the interpreter calls
        vars(module).clear()
    except Exception:
        pass  # of the program's making: the interpreter would print it and end
