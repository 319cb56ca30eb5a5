"""run_shell, run_python_code, file_write_safe, log_append and benchmark_run, inside the sandbox.

Each asks the host first, which checks the arguments and logs the call; the work is done here,
within the walls of the guest, with what the host has returned.
"""

from __future__ import annotations

import os
import sys

try:
    from ..cells.shell import Command
except ImportError:  # WebAssembly has no processes
    Command = None  # type: ignore[assignment, misc]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from ..shared.messages import Json, Names

    CallHost = Callable[..., Any]

LONGEST_OUTPUT = 200_000
"""Characters of a command's output, or of printed text, in a result."""
PAUSE_SECONDS, LONGEST_PAUSE = 0.001, 0.05
NO_PROCESSES = "{} cannot run here: this sandbox has no processes. Do it in Python, in the cell"
NO_FILES = "{} cannot run here: this sandbox runs checked code only. Do it in the cell itself"


class WorkTools:
    """The functions; `free` says whether guest code may open files and run any code."""

    NAMES = ("run_shell", "run_python_code", "file_write_safe", "log_append", "benchmark_run")

    def __init__(self, call_host: CallHost, free: bool) -> None:
        self._call, self._free = call_host, free

    def run_shell(self, command: str, timeout: float = 60.0) -> Json:
        """Run a shell command in the working folder: its exit code and output."""
        granted = self._granted("run_shell", command, timeout)
        return _run_command(granted["command"], granted["timeout"], "run_shell")

    def run_python_code(self, code: str) -> Json:
        """Run code in a namespace of its own: what it printed, its last value, its error."""
        return _run_code(self._granted("run_python_code", code)["code"])

    def file_write_safe(self, path: str, content: Any) -> Json:
        """Write a file of the working folder whole, or not at all; no link leads out of it."""
        granted = self._granted("file_write_safe", path, content)
        data = granted["content"]
        raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else bytes(data)
        place = _inside(granted["path"])
        if not os.path.isdir(os.path.dirname(place)):  # WASI refuses to make one that is there
            os.makedirs(os.path.dirname(place), exist_ok=True)
        beside = "{}.{}.part".format(place, os.urandom(4).hex())
        try:
            with open(beside, "xb") as file:
                file.write(raw)
            os.replace(beside, place)
        except BaseException:
            _remove(beside)
            raise
        return {"path": os.path.relpath(place), "bytes": len(raw)}

    def log_append(self, message: Any, log: str = "log") -> Json:
        """Append a line of JSON, with the time, to logs/NAME.jsonl in the working folder."""
        granted = self._granted("log_append", message, log)
        import json

        line = json.dumps(
            {"at": granted["at"], "message": granted["message"]}, ensure_ascii=False, default=repr
        )
        place = _inside(os.path.join("logs", granted["log"] + ".jsonl"))
        if not os.path.isdir(os.path.dirname(place)):  # WASI refuses to make one that is there
            os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "ab", 0) as file:  # one write: lines of several threads stay whole
            file.write(line.encode("utf-8", "surrogatepass") + b"\n")
        return {"path": os.path.relpath(place), "bytes": len(line) + 1}

    def benchmark_run(self, code: str, repeat: int = 5, shell: bool = False) -> Json:
        """Time code, or a shell command, several times: milliseconds of each run."""
        import time

        granted = self._granted("benchmark_run", code, repeat, shell)
        runs = []
        for _ in range(granted["repeat"]):
            started = time.perf_counter()
            outcome = (
                _run_command(granted["code"], granted["timeout"], "benchmark_run")
                if granted["shell"]
                else _run_code(granted["code"])
            )
            runs.append((time.perf_counter() - started) * 1000)
            if outcome.get("error") or outcome.get("exit_code"):
                return dict(outcome, runs_ms=runs, failed=True)
        runs_sorted = sorted(runs)
        middle = runs_sorted[len(runs) // 2]
        return {"runs_ms": runs, "median_ms": middle, "min_ms": runs_sorted[0], "failed": False}

    def _granted(self, name: str, *args: Any) -> Any:
        if not self._free:
            raise NotImplementedError(NO_FILES.format(name))
        return self._call(name, *args)


def _run_command(command: str, seconds: float, name: str) -> Json:
    if Command is None or sys.platform == "emscripten":
        raise NotImplementedError(NO_PROCESSES.format(name))
    import tempfile
    import time

    running, pause, until = Command(), PAUSE_SECONDS, time.monotonic() + seconds
    with tempfile.TemporaryFile() as output:
        try:
            running.start({"command": command}, os.getcwd(), (output.fileno(),) * 2)
            while not running.has_ended() and time.monotonic() < until:
                time.sleep(pause)
                pause = min(LONGEST_PAUSE, 2 * pause)
            late = not running.has_ended()
        finally:
            running.end()
            running.forget()
        size = output.seek(0, os.SEEK_END)
        output.seek(0)
        text = output.read(4 * LONGEST_OUTPUT).decode("utf-8", "replace")[:LONGEST_OUTPUT]
    result = {"exit_code": running.exit_code, "output": text, "timed_out": late}
    if len(text.encode("utf-8", "replace")) < size:
        result["truncated"] = True
    return result


def _run_code(code: str) -> Json:
    """Run code with a `print` of its own, so that calls in several threads do not mix."""
    import ast
    import functools
    import io

    printed = io.StringIO()
    space: Names = {"__name__": "__tool__", "print": functools.partial(print, file=printed)}
    value, error = None, None
    try:
        tree = ast.parse(code, "<tool code>")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<tool code>", "exec"), space)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<tool code>", "eval"), space)
    except (Exception, SystemExit) as exc:
        error = "{}: {}".format(type(exc).__name__, exc)
    text = printed.getvalue()
    return {"stdout": text[:LONGEST_OUTPUT], "value": value, "error": error}


def _inside(path: str) -> str:
    """Return the real path of a file of the working folder; ValueError for any other."""
    base = os.path.realpath(os.getcwd())
    place = os.path.normpath(os.path.join(base, path))
    folder = os.path.realpath(os.path.dirname(place))
    if os.path.commonpath([base, folder]) != base or place == base:
        raise ValueError("{!r} is outside of the working folder: give a path below it".format(path))
    if os.path.islink(place) or os.path.isdir(place):
        raise ValueError("{!r} is a link or a folder: give the path of a file".format(path))
    return os.path.join(folder, os.path.basename(place))


def _remove(path: str) -> None:
    try:
        os.remove(path)
    except OSError:
        pass
