"""The command line: help and options of every command, as commands.txt lists them.

A section of that file is a command: `=== NAME | brief text`, its description, then its options and
examples. A section `=== @NAME` has rows that others include by `@NAME`. Rows of options:

    --debug             a switch
    --tier TIER         an option with a value; its name says what is accepted, see KINDS
    --port N<port>      an option with a value of another kind than its name says
    --port N =8437      with a default
    --host NAME ...     may be given several times: a list
    -o, --output FILE   with a short name
    FILE                a word; [FILE] may be left out, FILE ... is one or more, [FILE ...] any
    code=FILE, lines=-n N   the parsed arguments have it under another name
    | --local           excludes the other rows that begin so

Two spaces end the left part. A row that is indented goes on with the help of the one before.
Imports no command, so that help is fast.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from typing import TYPE_CHECKING, Any

from atoll import __version__
from atoll.cli import argument_types as types
from atoll.cli.parser import CodeAction, Parser

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

BACKENDS = ("auto", "native", "wasm", "gvisor", "daemon", "pyodide", "remote", "ray", "restricted")
LEVELS = ("none", "guarded", "confined", "jailed", "kernel", "virtual")
DURABILITIES = ("none", "periodic", "cell")
SCOPES = ("execute", "sessions", "files", "runs", "metrics", "admin")
BEFORE_COMMANDS = ("--version", "--help", "-h")
"""What `atoll` answers without a command."""
HELP = "help"
"""`atoll help COMMAND` prints what `atoll COMMAND --help` does."""
UNSET = "=unset"
"""The default of an option for which None is a value."""
KINDS: dict[str, Mapping[str, Any]] = {
    "N": {"type": types.count},
    "S": {"type": types.seconds},
    "SECONDS": {"type": types.seconds},
    "SIZE": {"type": types.size},
    "T": {"type": types.temperature},
    "X": {"type": types.dollars},
    "NAME[=VALUE]": {"type": types.variable},
    "SRC:DST[:rw]": {"type": types.mount},
    "limit": {"type": types.count_or_none},
    "port": {"type": types.port},
    "depth": {"type": types.depth},
    "code": {"action": CodeAction},
    "off": {"action": "store_false"},
    "backend": {"choices": BACKENDS},
    "guard": {"choices": ("ast", "restrictedpython")},
    "level": {"choices": LEVELS},
    "scope": {"choices": SCOPES},
    "shell": {"choices": ("bash", "zsh", "fish")},
    "tier": {"choices": ("bare", "numeric", "full"), "metavar": None},
    "durability": {"choices": DURABILITIES, "metavar": None},
    "log": {"choices": ("text", "json"), "metavar": None},
    "watch": {"choices": ("changes", "all", "nothing"), "metavar": None},
    "export": {"choices": ("openai-messages",), "metavar": None},
}
"""Arguments of add_argument by the kind of a value; without a metavar, help lists the choices."""
_SECTION = re.compile(r"^=== (.+)\n", re.MULTILINE)
_PART = re.compile(r"^--- (.+)\n", re.MULTILINE)
_KIND = re.compile(r"<(\w+)>\Z")


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
    """Return the parser of the whole command line, or of the commands that begin with `first`.

    A command's parser takes milliseconds to make. If `first` is a command, the parser knows no
    other one; if it is one of BEFORE_COMMANDS, it knows the names of the commands alone.
    """
    about = Section("atoll")
    epilog = f"{about.epilog}\n{sections()['@exit codes']}"
    top = Parser(prog="atoll", description=about.description, epilog=epilog)
    top.add_argument("--version", action="version", version=f"atoll {__version__}")
    known = top.add_subparsers(
        title="commands", dest="command", required=True, metavar="COMMAND", parser_class=Parser
    )
    every = commands()
    for name in [first] if first in every else every:
        command = Section(name).add_to(known, options=first not in BEFORE_COMMANDS)
        command.free_order = name == "run"
        command.command_line = name == "exec"
        below = commands(f"{name} ")
        if below and first not in BEFORE_COMMANDS:
            actions = command.add_subparsers(
                title="actions", dest="action", required=True, metavar="ACTION", parser_class=Parser
            )
            for action in below:
                Section(f"{name} {action}").add_to(actions)
    return top


def commands(prefix: str = "") -> list[str]:
    """Return the names of the commands, or of those below one: `prefix` is its name and a space."""
    heads = [head.partition(" | ") for head in sections()]
    names = [name.removeprefix(prefix) for name, bar, _ in heads if bar and name.startswith(prefix)]
    return [name for name in names if " " not in name]


@functools.cache
def sections() -> dict[str, str]:
    """Return the sections of commands.txt by their first lines."""
    path = os.path.join(os.path.dirname(__file__), "commands.txt")
    with open(path, encoding="utf-8") as file:
        _, *parts = _SECTION.split(file.read())
    return {
        head: body.removesuffix("\n") for head, body in zip(parts[::2], parts[1::2], strict=True)
    }


class Section:
    """What commands.txt says about a command, such as `daemon start`."""

    def __init__(self, path: str) -> None:
        self.path = path
        head = next(head for head in sections() if head.partition(" | ")[0] == path)
        self.brief = head.partition(" | ")[2]
        description, *parts = _PART.split(sections()[head])
        self.description = description.rstrip("\n")
        *self._groups, last = zip(parts[::2], parts[1::2], strict=True)
        self.examples = last[1].removesuffix("\n")

    @property
    def epilog(self) -> str:
        """The examples, as they are printed below the options."""
        return f"examples:\n{self.examples}\n"

    def add_to(self, known: argparse._SubParsersAction[Parser], *, options: bool = True) -> Parser:
        """Add the command to its parent, with its options or without."""
        name = self.path.rpartition(" ")[2]
        command = known.add_parser(
            name, help=self.brief, description=self.description, epilog=self.epilog
        )
        for title, rows in self._groups if options else ():
            add_options(command if title == "options" else command.add_argument_group(title), rows)
        return command


def add_options(where: argparse._ActionsContainer, table: str) -> None:
    """Add the options of a table."""
    alternatives = None
    for row in _rows(table):
        left, _, text = row.partition("  ")
        target = where
        if left.startswith("| "):
            left = left.removeprefix("| ")
            target = alternatives = alternatives or where.add_mutually_exclusive_group()
        first, *words = left.split()
        dest, equals, named = first.partition("=")
        names = [named if equals else first] if (named or first).startswith("-") else []
        while names and words and words[0].startswith("-"):
            names.append(words.pop(0))
        given = _option(names, words) if names else _word(first, words)
        if names and equals:
            given["dest"] = dest
        target.add_argument(*[name.rstrip(",") for name in names], help=text.lstrip(), **given)


def _rows(table: str) -> Iterator[str]:
    """Yield the rows of a table and of those that it includes, each as one line."""
    for row in table.replace("\n    ", " ").splitlines():
        if row.startswith("@"):
            yield from _rows(sections()[row])
        else:
            yield row


def _option(names: list[str], words: list[str]) -> dict[str, Any]:
    """Return the arguments of add_argument for an option; cut the kind off its last name."""
    if not words:
        names[-1], kind = _kind_of(names[-1])
        return {"action": "store_true", **kind}
    metavar, kind = _kind_of(words[0])
    given: dict[str, Any] = {"metavar": metavar}
    if words[-1] == "...":
        given |= {"action": "append", "default": []}
    elif words[-1] == UNSET:
        given["default"] = ...
    elif words[-1].startswith("="):
        given["default"] = kind.get("type", str)(words[-1][1:])
    return {**given, **kind}


def _word(first: str, words: list[str]) -> dict[str, Any]:
    """Return the arguments of add_argument for a word that is not an option."""
    optional, many = first.startswith("["), bool(words) and words[-1].startswith("...")
    name, kind = _kind_of(first.strip("[]"))
    given = {"dest": name.partition("=")[0].lower(), "metavar": name.rpartition("=")[2], **kind}
    if optional or many:
        given["nargs"] = ("*" if many else "?") if optional else "+"
    if words and words[-1].startswith("="):
        given["default"] = words[-1][1:]
    return given


def _kind_of(name: str) -> tuple[str, Mapping[str, Any]]:
    """Return a name without its kind, and what that kind is to add_argument."""
    kind = _KIND.search(name)
    return (name[: kind.start()], KINDS[kind[1]]) if kind else (name, KINDS.get(name, {}))
