"""Options of a command as a table of text, a line each: the words that its help prints.

    --debug             a switch
    --tier TIER         an option with a value, whose type follows from the name of the value
    --port N =8437      with a default
    --host NAME ...     may be given several times: a list
    -o, --output FILE   with a short name
    FILE                a word; [FILE] may be left out, FILE ... is one or more, [FILE ...] any
    code=FILE           a word that the parsed arguments have under another name

Two spaces end the left part. A line that is indented goes on with the help of the one before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.cli.argument_types import count, dollars, mount, seconds, size, temperature, variable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

TYPES: dict[str, Callable[[str], Any]] = {
    "N": count,
    "S": seconds,
    "SECONDS": seconds,
    "SIZE": size,
    "T": temperature,
    "X": dollars,
    "NAME[=VALUE]": variable,
    "SRC:DST[:rw]": mount,
}
"""What a value is, by its name in the help; a text if its name is not here."""


def add_options(where: argparse._ActionsContainer, table: str, **more: Mapping[str, Any]) -> None:
    """Add the options of a table; `more` has further arguments of add_argument, by option."""
    table = table.lstrip("\n")
    margin = " " * (len(table) - len(table.lstrip()))
    for row in table.replace(f"\n{margin}    ", " ").splitlines():
        left, _, text = row.strip().partition("  ")
        if not left:
            continue
        words = left.split()
        names = [one.rstrip(",") for one in words if one.startswith("-")]
        given = _option(words[len(names) :]) if names else _word(words)
        name = names[-1].lstrip("-").replace("-", "_") if names else given.pop("name")
        given |= {"help": text.lstrip(), **more.get(name, {})}
        where.add_argument(*(names or [name]), **given)


def one_of(choices: tuple[str, ...]) -> dict[str, Any]:
    """Return what makes an option take one of some words, which its help lists."""
    return {"choices": choices, "metavar": None}


def _option(words: list[str]) -> dict[str, Any]:
    """Return the arguments of add_argument for what follows an option's names."""
    if not words:
        return {"action": "store_true"}
    kind = TYPES.get(words[0], str)
    given: dict[str, Any] = {"metavar": words[0]} | ({"type": kind} if kind is not str else {})
    if words[-1] == "...":
        given |= {"action": "append", "default": []}
    elif words[-1].startswith("="):
        given["default"] = kind(words[-1][1:])
    return given


def _word(words: list[str]) -> dict[str, Any]:
    """Return the arguments of add_argument for a word that is no option."""
    first = words[0].strip("[]")
    given: dict[str, Any] = {"name": first.partition("=")[0].lower()}
    given["metavar"] = first.rpartition("=")[2]
    optional, many = words[0].startswith("["), words[-1].startswith("...")
    if optional or many:
        given["nargs"] = ("*" if many else "?") if optional else "+"
    if words[-1].startswith("="):
        given["default"] = words[-1][1:]
    return given
