"""An argparse parser with one-line errors, no abbreviated options, and free order for `run`."""

from __future__ import annotations

import argparse
import difflib
import itertools
import re
import shlex
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence

USAGE_ERROR = 2
_OPTION = re.compile(r"--?[^\W\d]")
_PREFIX = re.compile(r"argument (\S+): (must |expected )")


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of descriptions, and leaves room for long names of commands."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, **{"max_help_position": 26, **options})
        self._action_max_length = 15  # argparse forgets that names of commands are indented twice

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Wrap paragraphs that are wider than the terminal; examples, which are indented, stay."""
        filled = super()._fill_text(text, width, indent)
        if not any(len(line) > width for line in filled.splitlines() if line[:1] != " "):
            return filled
        blocks = itertools.groupby(filled.splitlines(), lambda line: line[:1] not in ("", " "))
        return "\n".join(
            textwrap.fill(" ".join(lines), width) if is_prose else "\n".join(lines)
            for is_prose, lines in blocks
        )


_DEFAULTS: dict[str, object] = {"formatter_class": HelpFormatter, "allow_abbrev": False}


class Parser(argparse.ArgumentParser):
    """Names the mistake in one line, and which help to read."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**_DEFAULTS, **options})
        self.free_order = False
        """Whether FILE and ARGs may stand between options, as in `atoll run`.

        What follows the first `--` belongs to FILE and ARGs whatever it looks like. An unknown
        option before it is an error and not an argument: a misspelled limit must not be ignored.
        """
        self.command_line = False
        """Whether the first word begins another program's command line, as in `atoll exec`."""

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with 2."""
        text = _PREFIX.sub(r"\1 \2", message)
        self.exit(USAGE_ERROR, f"{self.prog}: {text}\nType `{self.prog} --help` for help.\n")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse arguments; with `free_order`, `file` and `args` get the words among the options."""
        given = list(sys.argv[1:] if args is None else args)
        if self.command_line:
            return self._parse_command_line(given, namespace), []
        at = given.index("--") if "--" in given else len(given)
        if self._subparsers is None:  # else most words are for a command
            self._check_options(given[:at])
        if not self.free_order:
            parsed, extras = super().parse_known_args(given, namespace)
            if extras:
                self.error(f"unknown option or argument: {' '.join(extras)}")
            return parsed, extras
        parsed, extras = super().parse_known_args(given[:at], namespace)
        words = [file for file in (parsed.file,) if file is not None] + parsed.args + extras
        for word in words:
            if word.startswith("-") and word != "-":
                self._refuse_option(word)
        words += given[at + 1 :]
        if parsed.code is None and not words:
            self.error("give a FILE, - for stdin, or -c CODE")
        parsed.file = None if parsed.code is not None else words.pop(0)
        parsed.args = words
        return parsed, []

    def _parse_command_line(
        self, given: list[str], namespace: argparse.Namespace | None
    ) -> argparse.Namespace:
        """Parse our own options; `args` gets the first word that is not one, and what follows."""
        at = 0
        while at < len(given) and given[at] != "--" and _OPTION.match(given[at]):
            action = self._option_string_actions.get(given[at])
            at += 2 if action is not None and action.nargs != 0 else 1
        own, rest = given[:at], given[at:]
        self._check_options(own)
        parsed, _ = super().parse_known_args(own, namespace)
        parsed.args = rest[1:] if rest[:1] == ["--"] else rest
        return parsed

    def _check_options(self, words: list[str]) -> None:
        """Exit with 2 for an unknown option, before its value is taken for something else."""
        for word in words:
            name = word.partition("=")[0] if word.startswith("--") else word[:2]
            is_option = _OPTION.match(word) and " " not in word
            if is_option and name not in self._option_string_actions:
                self._refuse_option(name)

    def _refuse_option(self, name: str) -> NoReturn:
        known = {action.lstrip("-"): action for action in self._option_string_actions}
        close = difflib.get_close_matches(name.lstrip("-"), known, n=1)
        guess = f" Did you mean {known[close[0]]}?" if close else ""
        more = " Put arguments of the program after --" if self.free_order else ""
        self.error(f"unknown option {name}.{guess}{more}")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write a message; argparse's own method hides a full disk and a closed stream."""
        if message:
            (file or sys.stderr).write(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise ArgumentError if a value is not one of an argument's choices."""
        if action.choices is None or value in action.choices:
            return
        names = [str(choice) for choice in action.choices]
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            self.error(_unknown_command(self.prog, str(value), names))
        close = difflib.get_close_matches(str(value), names, n=1)
        guess = f". Did you mean {close[0]}?" if close else ""
        text = f"must be one of {', '.join(names)}, got {value!r}{guess}"
        raise argparse.ArgumentError(action, text)


class CodeAction(argparse.Action):
    """Stores -c CODE, unless a FILE stands before it: `run script.py -c x` means the script's."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Store the code; exit with 2 if a FILE was given before it."""
        if namespace.file is not None:
            parser.error(
                f"{option_string} after FILE. Put arguments of the program after --, or omit FILE"
            )
        setattr(namespace, self.dest, values)


def _unknown_command(prog: str, value: str, names: list[str]) -> str:
    if "run" in names and (value.endswith(".py") or Path(value).is_file()):
        return f"unknown command {value!r}. Did you mean `{prog} run {shlex.quote(value)}`?"
    close = difflib.get_close_matches(value, names, n=1)
    guess = f"Did you mean `{prog} {close[0]}`?" if close else f"Use one of {', '.join(names)}."
    return f"unknown command {value!r}. {guess}"
