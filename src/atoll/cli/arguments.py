"""The options of every command; `main` parses with it. Imports no command, so that help is fast."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING

from atoll import __version__
from atoll.cli.argument_types import count, count_or_none
from atoll.cli.commands import (
    ask_arguments,
    daemon_arguments,
    env_arguments,
    fleet_arguments,
    mcp_arguments,
    serve_arguments,
)
from atoll.cli.option_table import add_options, one_of
from atoll.cli.parser import CodeAction, Parser
from atoll.cli.terminal import help_texts

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
        "repl": ("type code at a prompt in a sandbox", _add_repl),
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
    table = """
        [FILE]           a Python file, or - for stdin
        [args=ARG ...]   arguments of the program: sys.argv
        -c CODE          run this code instead of a file
        --json           print the whole result as one JSON object at the end, figures included
    """
    add_options(run, table, c={"dest": "code", "action": CodeAction})
    add_options(run, _FIGURES)
    _add_sandbox_options(run)


_FIGURES = (
    "--figures DIR  save figures here, as figure-1.png and so on (default: the current folder)"
)


def _add_repl(repl: Parser) -> None:
    add_options(repl, _FIGURES)
    _add_sandbox_options(repl)


def _add_sandbox_options(command: Parser) -> None:
    group = command.add_argument_group("sandbox")
    table = f"""
        --context FILE       a text file, or - for stdin, that the code sees as the variable
            `context`
        --files DIR          a folder that the code sees as /app and may write to
        --mount SRC:DST[:rw] ...  show the file or folder SRC as DST in the sandbox, read-only
            unless :rw; repeatable
        --env NAME[=VALUE] ...  set an environment variable in the sandbox, or pass on yours;
            repeatable
        --guard NAME         check the code before it runs: {", ".join(GUARDS)}
    """
    add_options(group, table, guard={"choices": GUARDS})
    env_arguments.add_packages(group)
    _add_limits(group)
    _add_backend_options(group)
    url = """
        --url URL  run on the service (`atoll serve`) at URL, with the key in $ATOLL_API_KEY
            (default: $ATOLL_URL, unless a backend is named)
    """
    add_options(group, url)


_NETWORK = """
    --allow-host HOST[:PORT] ...  a host that the code may reach by http and https, or *.DOMAIN;
        repeatable
"""


def _add_limits(group: argparse._ActionsContainer) -> None:
    add_options(group, _NETWORK)
    add_options(group, "--timeout SECONDS  time limit of one program or cell (default 600)")
    table = """
        --memory SIZE  memory, such as 512M, 2G or none (default 512M)
        --disk SIZE    size of all private folders together, or none (default 256M)
        --processes N  processes and threads at once, or none (default 256)
    """
    unset = {"default": ...}
    processes = {**unset, "type": count_or_none}
    add_options(group, table, memory=unset, disk=unset, processes=processes)


def _add_backend_options(group: argparse._ActionsContainer) -> None:
    table = f"""
        --backend NAME         {", ".join(BACKENDS)} (default: $ATOLL_BACKEND or auto)
        --python PATH          the sandbox's interpreter, such as .venv/bin/python
        --min-isolation LEVEL  fail if the isolation is weaker than this: {", ".join(LEVELS)}
    """
    levels = {"choices": LEVELS}
    add_options(group, table, backend={"choices": BACKENDS}, min_isolation=levels)


def _add_repl_server(server: Parser) -> None:
    table = f"""
        --no-prefetch     start each sandbox when it is needed, without libraries
        {daemon_arguments.PRELOAD}
        --debug           log each request and response to stderr, with sizes
        --debug-contents  as --debug, with code and output
    """
    add_options(server, table, no_prefetch={"dest": "prefetch", "action": "store_false"})
    group = server.add_argument_group("sandboxes")
    env_arguments.add_packages(group)
    _add_limits(group)
    _add_backend_options(group)


def _add_doctor(doctor: Parser) -> None:
    table = """
        --attack  run the attacks of the self-check
        --json    print one JSON object
    """
    add_options(doctor, table)
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
    add_options(sandboxes, _NETWORK)
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
    add_options(build, "--output PATH  write the component to this file instead")
    install = _command(actions, "install", "install pure Python packages for guests")
    add_options(install, "packages=PACKAGE ...  a requirement as for pip")
    _command(actions, "status", "show what is built and installed")


def _add_pyodide(pyodide: Parser) -> None:
    actions = _actions(pyodide)
    _command(actions, "setup", "download Pyodide and build its memory image")
    install = _command(actions, "install", "download packages for guests")
    add_options(install, "packages=PACKAGE ...  a requirement as for pip")
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
        add_options(action, "FILE  a record that `atoll ask --trace` wrote")
    add_options(show, "--full  show every sub-call and uncut texts")
    add_options(show, "--no-color  print without colours")
    output = {"dest": "output"}
    add_options(page, "-o OUT  the page, - for stdout (default FILE.html)", o=output)
    formats = one_of(("openai-messages",))
    row = "--format FORM =openai-messages  rows of messages with role and content"
    add_options(export, row, format=formats)
    add_options(export, "-o OUT  the file (default stdout)", o=output)


def _add_colgrep(search: Parser) -> None:
    table = """
        QUERY                what the code does, in words
        [PATH] =.            a folder (default: .)
        -e, --pattern REGEX  show only code that matches
        -k N =10             results (default: 10)
        --search-server URL  a NextPLAID server
        --json               print JSON, with the code
    """
    add_options(search, table)


def _add_memory(memory: Parser) -> None:
    actions = _actions(memory)
    every = _command(actions, "list", "list earlier runs, the last used first")
    show = _command(actions, "show", "show one item")
    export = _command(actions, "export", "write all items as JSON lines")
    forget = _command(actions, "forget", "delete items")
    table = """
        FILE                       a file from `atoll ask --memory-file`
        --namespace NAME =default  whose items (default: default)
    """
    for action in (every, show, export, forget):
        add_options(action, table)
    add_options(every, "--json  print one JSON array")
    add_options(show, "ID  the item's number", id={"type": count})
    add_options(export, "-o OUT  the file (default stdout)", o={"dest": "output"})
    add_options(forget, "[ids=ID ...]  numbers of items", ids={"type": count})
    add_options(forget, "--all  forget the whole namespace")


def _add_completion(completion: Parser) -> None:
    add_options(completion, "SHELL  bash, zsh or fish", shell={"choices": SHELLS})  # noqa: S604
