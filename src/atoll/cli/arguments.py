"""What can be typed after `atoll`; main parses with it. Loads no command, so that help is fast."""

from __future__ import annotations

import argparse
import re

from atoll import __version__
from atoll.cli import ask_arguments

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
TIERS = ("bare", "numeric", "full")
GUARDS = ("ast", "restrictedpython")
LEVELS = ("none", "guarded", "confined", "jailed", "virtual")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?\Z", re.IGNORECASE)

_EXAMPLES = """\
examples:
  atoll run script.py                     run a file
  atoll run -c 'print(6 * 7)'             run a line
  atoll run - --context book.txt < a.py   code from stdin, a book as the variable `context`
  atoll repl --context book.txt           type cells, state lives on
  atoll doctor                            what this host allows
  atoll doctor --attack                   try to break out, and see
  atoll daemon start                      a process that holds sandboxes for others
  atoll wasm build                        have CPython as WebAssembly ready
  atoll pyodide setup                     have Python as WebAssembly ready
  atoll ask 'Who did it?' --context books  a model looks into files, by code
  atoll trace show run.jsonl              what a model did, step by step
"""

_RUN_TEXT = """\
Run a program in a fresh sandbox. What it prints is passed on as it comes, and its exit code is
the command's: 1 if it raised, 124 if it took too long, 130 if it was cancelled by Ctrl-C.
Code 2 means that it did not run at all."""

_REPL_TEXT = """\
Type cells that run in one sandbox; variables live on. Ctrl-C cancels a running cell, Ctrl-D
leaves, and %help tells the commands."""

_REPL_SERVER_TEXT = """\
Serve requests that come framed on stdin, each in a fresh sandbox that is destroyed after it; the
responses go to stdout. It is a program for programs: docs/repl-server.md has the protocol."""

_DOCTOR_TEXT = """\
Show which backends can run on this machine, how strongly each isolates code, and how its limits
are enforced. The exit code is 0 if a backend with real isolation is usable. With --attack, run a
list of attacks against the chosen backend; the exit code is 0 only if all of them are stopped."""

_DAEMON_TEXT = """\
A background process that serves warm sandboxes to many clients over a Unix socket. While it runs,
the default backend (`auto`) uses it. The socket is --socket, else $ATOLL_DAEMON_SOCKET, else
~/.rlm/daemon.sock."""

_WASM_TEXT = """\
CPython as WebAssembly, for the `wasm` backend. `build` makes it, which takes a minute, so that no
sandbox has to wait for that; `install` puts pure Python packages where its guests import them."""

_PYODIDE_TEXT = """\
Python as WebAssembly, for the `pyodide` backend. `setup` fetches it and builds its memory image, so
that no sandbox has to wait for that; `install` downloads packages that its guests can import."""


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    top = argparse.ArgumentParser(
        prog="atoll",
        description="Run Python that you did not write: jailed, with limits, beside a context.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"atoll {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_run(_command(commands, "run", "run a program in a fresh sandbox", _RUN_TEXT))
    _add_sandbox_options(_command(commands, "repl", "type cells into a sandbox", _REPL_TEXT))
    _add_repl_server(
        _command(commands, "repl-server", "serve framed requests on stdio", _REPL_SERVER_TEXT)
    )
    _add_doctor(_command(commands, "doctor", "tell what this host allows", _DOCTOR_TEXT))
    _add_daemon(_command(commands, "daemon", "hold sandboxes for many clients", _DAEMON_TEXT))
    _add_wasm(_command(commands, "wasm", "keep CPython as WebAssembly ready", _WASM_TEXT))
    _add_pyodide(_command(commands, "pyodide", "keep Python as WebAssembly ready", _PYODIDE_TEXT))
    ask = _command(commands, "ask", ask_arguments.ASK_BRIEF, ask_arguments.ASK_TEXT)
    ask_arguments.add_ask(ask, count=count, seconds=seconds)
    _add_backend_options(ask.add_argument_group("sandboxes"))
    ask_arguments.add_model(
        _command(commands, "model", ask_arguments.MODEL_BRIEF, ask_arguments.MODEL_TEXT)
    )
    ask_arguments.add_trace(
        _command(commands, "trace", ask_arguments.TRACE_BRIEF, ask_arguments.TRACE_TEXT)
    )
    return top


def size(text: str) -> int | None:
    """Bytes in `512M`, `2G` or a plain number; None for `none`."""
    if text.lower() == "none":
        return None
    match = _SIZE.match(text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: use 512M, 2G, bytes, or none")
    return int(float(match[1]) * UNITS[match[2].upper()])


def seconds(text: str) -> float:
    """A positive number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number of seconds")
    return value


def count(text: str) -> int:
    """A positive whole number."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive whole number")
    return int(text)


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, brief: str, text: str
) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=brief,
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_run(run: argparse.ArgumentParser) -> None:
    what = run.add_mutually_exclusive_group(required=True)
    what.add_argument("file", nargs="?", metavar="FILE", help="a Python file, or - for stdin")
    what.add_argument("-c", dest="code", metavar="CODE", help="the code itself")
    run.add_argument(
        "--json", action="store_true", help="print the whole result as one JSON object, at the end"
    )
    _add_sandbox_options(run)


def _add_sandbox_options(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("the sandbox")
    group.add_argument(
        "--context", metavar="FILE", help="a text file (or - for stdin): the variable `context`"
    )
    group.add_argument("--files", metavar="DIR", help="a folder of yours that is /app inside")
    group.add_argument(
        "--guard", metavar="NAME", choices=GUARDS, help=f"check code first: {', '.join(GUARDS)}"
    )
    _add_limits(group)
    _add_backend_options(group)


def _add_limits(group: argparse._ActionsContainer) -> None:
    group.add_argument("--timeout", metavar="SECONDS", type=seconds, help="for one cell (600)")
    group.add_argument(
        "--memory", metavar="SIZE", type=size, default=..., help="512M, 2G, none (512M)"
    )
    group.add_argument(
        "--disk", metavar="SIZE", type=size, default=..., help="all private folders; or none (256M)"
    )


def _add_backend_options(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--backend", metavar="NAME", help="the backend to use ($ATOLL_BACKEND, else auto)"
    )
    group.add_argument("--python", metavar="PATH", help="the interpreter inside, such as a venv's")
    group.add_argument(
        "--min-isolation",
        metavar="LEVEL",
        choices=LEVELS,
        help=f"refuse to run below this level: {', '.join(LEVELS)}",
    )


def _add_repl_server(server: argparse.ArgumentParser) -> None:
    server.add_argument(
        "--no-prefetch",
        dest="prefetch",
        action="store_false",
        help="start each sandbox when it is asked for: nothing preloaded, none ahead",
    )
    _add_preload(server)
    server.add_argument(
        "--debug", action="store_true", help="tell of requests and responses on stderr: sizes"
    )
    server.add_argument(
        "--debug-contents", action="store_true", help="the same, with all that is in them"
    )
    group = server.add_argument_group("the sandboxes")
    _add_limits(group)
    _add_backend_options(group)


def _add_doctor(doctor: argparse.ArgumentParser) -> None:
    doctor.add_argument("--attack", action="store_true", help="run the attacks of the self-check")
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    _add_backend_options(doctor)


def _add_daemon(daemon: argparse.ArgumentParser) -> None:
    actions = daemon.add_subparsers(dest="action", required=True, metavar="ACTION")
    start = _action(actions, "start", "start it; 0 if it runs already")
    status = _action(actions, "status", "tell how it is; 1 if none runs")
    _action(actions, "stop", "end it and every sandbox in it")
    logs = _action(actions, "logs", "print the end of its log")
    start.add_argument("--foreground", action="store_true", help="stay; do not go to background")
    _add_preload(start)
    start.add_argument(
        "--tier",
        choices=TIERS,
        help="what sessions find imported: bare, numeric (numpy, pandas), full (full)",
    )
    start.add_argument(
        "--idle-timeout",
        metavar="SECONDS",
        type=seconds,
        help="until an unused session ends (3600)",
    )
    start.add_argument("--max-sessions", metavar="N", type=count, help="in all (1024)")
    start.add_argument("--max-live", metavar="N", type=count, help="sessions in memory (128)")
    start.add_argument("--max-memory", metavar="SIZE", type=size, help="of all sessions (half)")
    start.add_argument("--max-running", metavar="N", type=count, help="cells at once (2 a core)")
    start.add_argument("--max-queue", metavar="N", type=count, help="cells that wait (256)")
    status.add_argument("--json", action="store_true", help="print one JSON object")
    logs.add_argument("-f", dest="follow", action="store_true", help="go on as lines come")
    logs.add_argument("-n", dest="lines", metavar="N", type=count, default=20, help="lines (20)")


def _add_preload(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--preload",
        metavar="IMPORT",
        action="append",
        default=[],
        help="one more import statement for every warm interpreter, as 'import polars as pl'",
    )


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, brief: str
) -> argparse.ArgumentParser:
    action = actions.add_parser(name, help=brief, description=brief)
    action.add_argument("--socket", metavar="PATH", help="where it listens")
    return action


def _add_wasm(wasm: argparse.ArgumentParser) -> None:
    actions = wasm.add_subparsers(dest="action", required=True, metavar="ACTION")
    build = actions.add_parser("build", help="make the component, and compile it")
    build.add_argument("--output", metavar="PATH", help="write the component there instead")
    install = actions.add_parser("install", help="install pure Python packages for guests")
    install.add_argument("packages", nargs="+", metavar="PACKAGE", help="a name, as pip takes it")
    actions.add_parser("status", help="tell what is there")


def _add_pyodide(pyodide: argparse.ArgumentParser) -> None:
    actions = pyodide.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("setup", help="fetch Pyodide and build its memory image")
    install = actions.add_parser("install", help="download packages for guests")
    install.add_argument("packages", nargs="+", metavar="PACKAGE", help="a name, as pip takes it")
    actions.add_parser("status", help="tell what is there")
