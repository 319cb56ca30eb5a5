"""The options of every command; `main` parses with it. Imports no command, so that help is fast."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING

from atoll import __version__
from atoll.cli import (
    ask_arguments,
    daemon_arguments,
    env_arguments,
    fleet_arguments,
    help_texts,
    mcp_arguments,
    serve_arguments,
)
from atoll.cli.argument_types import count, count_or_none, mount, seconds, size, variable
from atoll.cli.parser import CodeAction, Parser

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    Commands = argparse._SubParsersAction[Parser]  # noqa: SLF001 - it has no public name

BACKENDS = ("auto", "native", "wasm", "gvisor", "daemon", "pyodide", "remote", "ray", "restricted")
TIERS = ("bare", "numeric", "full")
GUARDS = ("ast", "restrictedpython")
LEVELS = ("none", "guarded", "confined", "jailed", "kernel", "virtual")
SHELLS = ("bash", "zsh", "fish")
BEFORE_COMMANDS = ("--version", "--help", "-h")
"""What `atoll` answers without a command."""
HELP = "help"
"""`atoll help COMMAND` prints what `atoll COMMAND --help` does."""


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the parsed arguments; exit with 2 and one line if they are wrong."""
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == [HELP]:
        given = [*given[1:], "--help"]
    top = parser(given[0] if given else "")
    if given[:1] == ["-c"]:  # as `python -c`; argparse would take the code for a command
        top.error("unknown option -c. Did you mean `atoll run -c CODE`?")
    return top.parse_args(given)


@functools.cache
def parser(first: str = "") -> Parser:
    """Return the parser of the whole command line, or of what begins with the word `first`.

    A command's parser takes milliseconds to make. If `first` is a command, the parser knows no
    other one; if it is one of BEFORE_COMMANDS, it knows the names of the commands alone.
    """
    top = Parser(
        prog="atoll",
        description=help_texts.SUMMARY,
        epilog=f"{help_texts.epilog('')}\n{help_texts.EXIT_CODES}",
    )
    top.add_argument("--version", action="version", version=f"atoll {__version__}")
    known = top.add_subparsers(
        title="commands", dest="command", required=True, metavar="COMMAND", parser_class=Parser
    )
    every = commands()
    for name in [first] if first in every else every:
        brief, add_options = every[name]
        command = _command(known, name, brief)
        if first not in BEFORE_COMMANDS:
            add_options(command)
    return top


def commands() -> dict[str, tuple[str, Callable[[Parser], None]]]:
    """Return what each command does, in a few words, and what adds its options."""
    return {
        "run": ("run a program in a new sandbox", _add_run),
        "repl": ("type code at a prompt in a sandbox", _add_sandbox_options),
        "repl-server": ("serve framed requests on stdin", _add_repl_server),
        "doctor": ("show what works on this machine", _add_doctor),
        "daemon": ("keep warm sandboxes for many clients", _add_daemon),
        "serve": ("serve sandboxes over HTTP", lambda it: serve_arguments.add_serve(it, TIERS)),
        "fleet": ("run sandboxes on many machines", _add_fleet),
        "keys": ("make and revoke keys for `atoll serve`", _add_keys),
        "mcp": ("serve sandboxes to MCP clients", _add_mcp),
        "kernel": ("run notebooks in a sandbox", _add_kernel),
        "wasm": ("set up CPython for the wasm backend", _add_wasm),
        "pyodide": ("set up Pyodide for the pyodide backend", _add_pyodide),
        "env": ("keep packages by name for sandboxes", _add_env),
        "ask": ("ask a model about files of any size", _add_ask),
        "model": ("download a small model that runs on this machine", _add_model),
        "trace": ("show the record of a run of `atoll ask`", _add_trace),
        "colgrep": ("search code by meaning", _add_colgrep),
        "memory": ("show or forget what earlier runs left behind", _add_memory),
        "completion": ("print a completion script for your shell", _add_completion),
    }


def _command(known: Commands, name: str, brief: str, text: str | None = None) -> Parser:
    """Add a command; description (if not given) and examples are in help_texts by its full name."""
    path = f"{known._prog_prefix} {name}".removeprefix("atoll").strip()  # noqa: SLF001
    return known.add_parser(
        name,
        help=brief,
        description=help_texts.DESCRIPTIONS[path] if text is None else text,
        epilog=help_texts.epilog(path),
    )


def _actions(command: Parser) -> Commands:
    return command.add_subparsers(
        title="actions", dest="action", required=True, metavar="ACTION", parser_class=Parser
    )


def _add_run(run: Parser) -> None:
    run.free_order = True
    run.add_argument("file", nargs="?", metavar="FILE", help="a Python file, or - for stdin")
    run.add_argument("args", nargs="*", metavar="ARG", help="arguments of the program: sys.argv")
    run.add_argument(
        "-c",
        dest="code",
        metavar="CODE",
        action=CodeAction,
        help="run this code instead of a file",
    )
    run.add_argument(
        "--json", action="store_true", help="print the whole result as one JSON object at the end"
    )
    _add_sandbox_options(run)


def _add_sandbox_options(command: Parser) -> None:
    group = command.add_argument_group("sandbox")
    group.add_argument(
        "--context",
        metavar="FILE",
        help="a text file, or - for stdin, that the code sees as the variable `context`",
    )
    group.add_argument(
        "--files", metavar="DIR", help="a folder that the code sees as /app and may write to"
    )
    group.add_argument(
        "--mount",
        metavar="SRC:DST[:rw]",
        type=mount,
        action="append",
        default=[],
        help="show the file or folder SRC as DST in the sandbox, read-only unless :rw; repeatable",
    )
    group.add_argument(
        "--env",
        metavar="NAME[=VALUE]",
        type=variable,
        action="append",
        default=[],
        help="set an environment variable in the sandbox, or pass on yours; repeatable",
    )
    group.add_argument(
        "--guard",
        metavar="NAME",
        choices=GUARDS,
        help=f"check the code before it runs: {', '.join(GUARDS)}",
    )
    env_arguments.add_packages(group)
    _add_limits(group)
    _add_backend_options(group)
    group.add_argument(
        "--url",
        metavar="URL",
        help="run on the service (`atoll serve`) at URL, with the key in $ATOLL_API_KEY",
    )


def _add_network(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--allow-host",
        metavar="HOST[:PORT]",
        action="append",
        default=[],
        help="a host that the code may reach by http and https, or *.DOMAIN; repeatable",
    )


def _add_limits(group: argparse._ActionsContainer) -> None:
    _add_network(group)
    group.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        help="time limit of one program or cell (default 600)",
    )
    group.add_argument(
        "--memory",
        metavar="SIZE",
        type=size,
        default=...,
        help="memory, such as 512M, 2G or none (default 512M)",
    )
    group.add_argument(
        "--disk",
        metavar="SIZE",
        type=size,
        default=...,
        help="size of all private folders together, or none (default 256M)",
    )
    group.add_argument(
        "--processes",
        metavar="N",
        type=count_or_none,
        default=...,
        help="processes and threads at once, or none (default 256)",
    )


def _add_backend_options(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--backend",
        metavar="NAME",
        choices=BACKENDS,
        help=f"{', '.join(BACKENDS)} (default: $ATOLL_BACKEND or auto)",
    )
    group.add_argument(
        "--python", metavar="PATH", help="the sandbox's interpreter, such as .venv/bin/python"
    )
    group.add_argument(
        "--min-isolation",
        metavar="LEVEL",
        choices=LEVELS,
        help=f"fail if the isolation is weaker than this: {', '.join(LEVELS)}",
    )


def _add_repl_server(server: Parser) -> None:
    server.add_argument(
        "--no-prefetch",
        dest="prefetch",
        action="store_false",
        help="start each sandbox when it is needed, without libraries",
    )
    daemon_arguments.add_preload(server)
    server.add_argument(
        "--debug", action="store_true", help="log each request and response to stderr, with sizes"
    )
    server.add_argument(
        "--debug-contents", action="store_true", help="as --debug, with code and output"
    )
    group = server.add_argument_group("sandboxes")
    env_arguments.add_packages(group)
    _add_limits(group)
    _add_backend_options(group)


def _add_doctor(doctor: Parser) -> None:
    doctor.add_argument("--attack", action="store_true", help="run the attacks of the self-check")
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    _add_backend_options(doctor)


def _add_fleet(fleet: Parser) -> None:
    actions = _actions(fleet)
    for name, (brief, add) in fleet_arguments.actions(TIERS).items():
        add(_command(actions, name, brief))


def _add_keys(keys: Parser) -> None:
    actions = _actions(keys)
    serve_arguments.add_keys(
        _command(actions, "add", "make a key and print it"),
        _command(actions, "list", "list keys, without their secrets"),
        _command(actions, "revoke", "refuse a key from now on"),
    )


def _add_mcp(mcp: Parser) -> None:
    mcp_arguments.add_mcp(mcp, TIERS)
    _add_sandbox_options(mcp)


def _add_kernel(kernel: Parser) -> None:
    actions = _actions(kernel)
    mcp_arguments.add_kernel(
        _command(actions, "install", "let Jupyter find the kernel"),
        _command(actions, "remove", "delete the kernel from Jupyter's list"),
    )


def _add_ask(ask: Parser) -> None:
    ask_arguments.add_ask(ask)
    sandboxes = ask.add_argument_group("sandboxes")
    env_arguments.add_packages(sandboxes)
    _add_network(sandboxes)
    _add_backend_options(sandboxes)


def _add_daemon(daemon: Parser) -> None:
    actions = _actions(daemon)
    daemon_arguments.add_daemon(
        _command(actions, "start", "start the daemon"),
        _command(actions, "status", "show the daemon's state and load"),
        _command(actions, "stop", "stop the daemon and every sandbox in it"),
        _command(actions, "logs", "print the end of the log"),
        TIERS,
    )


def _add_wasm(wasm: Parser) -> None:
    actions = _actions(wasm)
    build = _command(actions, "build", "build the CPython component")
    build.add_argument("--output", metavar="PATH", help="write the component to this file instead")
    install = _command(actions, "install", "install pure Python packages for guests")
    install.add_argument("packages", nargs="+", metavar="PACKAGE", help="a requirement as for pip")
    _command(actions, "status", "show what is built and installed")


def _add_pyodide(pyodide: Parser) -> None:
    actions = _actions(pyodide)
    _command(actions, "setup", "download Pyodide and build its memory image")
    install = _command(actions, "install", "download packages for guests")
    install.add_argument("packages", nargs="+", metavar="PACKAGE", help="a requirement as for pip")
    _command(actions, "status", "show what is installed")


def _add_env(env: Parser) -> None:
    actions = _actions(env)
    env_arguments.add_env(lambda name, brief: _command(actions, name, brief))


def _add_model(model: Parser) -> None:
    actions = _actions(model)
    _command(actions, "get", "download the model, with progress, and check its sha256")
    _command(actions, "list", "list the models that can be downloaded")
    _command(actions, "status", "show whether the model is downloaded and can run")
    _command(actions, "remove", "delete the model and partial downloads")


def _add_trace(trace: Parser) -> None:
    actions = _actions(trace)
    show = _command(actions, "show", "print a record as a tree")
    page = _command(actions, "html", "write a record as one HTML page")
    export = _command(actions, "export", "write the conversations with models as JSON lines")
    for action in (show, page, export):
        action.add_argument("file", metavar="FILE", help="a record that `atoll ask --trace` wrote")
    show.add_argument("--full", action="store_true", help="show every sub-call and uncut texts")
    show.add_argument("--no-color", action="store_true", help="print without colours")
    page.add_argument(
        "-o", dest="output", metavar="OUT", help="the page, - for stdout (default FILE.html)"
    )
    export.add_argument(
        "--format",
        choices=("openai-messages",),
        default="openai-messages",
        help="rows of messages with role and content",
    )
    export.add_argument("-o", dest="output", metavar="OUT", help="the file (default stdout)")


def _add_colgrep(search: Parser) -> None:
    search.add_argument("query", metavar="QUERY", help="what the code does, in words")
    search.add_argument(
        "path", nargs="?", default=".", metavar="PATH", help="a folder (default: .)"
    )
    search.add_argument("-e", "--pattern", metavar="REGEX", help="show only code that matches")
    search.add_argument("-k", type=count, default=10, metavar="N", help="results (default: 10)")
    search.add_argument("--search-server", metavar="URL", help="a NextPLAID server")
    search.add_argument("--json", action="store_true", help="print JSON, with the code")


def _add_memory(memory: Parser) -> None:
    actions = _actions(memory)
    every = _command(actions, "list", "list earlier runs, the last used first")
    show = _command(actions, "show", "show one item")
    export = _command(actions, "export", "write all items as JSON lines")
    forget = _command(actions, "forget", "delete items")
    for action in (every, show, export, forget):
        action.add_argument("file", metavar="FILE", help="a file from `atoll ask --memory-file`")
        action.add_argument(
            "--namespace", metavar="NAME", default="default", help="whose items (default: default)"
        )
    every.add_argument("--json", action="store_true", help="print one JSON array")
    show.add_argument("id", metavar="ID", type=count, help="the item's number")
    export.add_argument("-o", dest="output", metavar="OUT", help="the file (default stdout)")
    forget.add_argument("ids", metavar="ID", type=count, nargs="*", help="numbers of items")
    forget.add_argument("--all", action="store_true", help="forget the whole namespace")


def _add_completion(completion: Parser) -> None:
    completion.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")
