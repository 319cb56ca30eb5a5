"""Writes docs/cli.md from the help texts of the command line, so that they never differ.

A test compares them; run this after changing an option.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from atoll.cli import arguments

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
HEAD = """# Command line

Generated from the help texts by `make docs`.

The exit codes of every command are at the end of the help of `atoll`.
In `atoll repl`, `%help` lists the commands that begin with `%`.
"""


def render() -> str:
    """Return the page."""
    os.environ.update(COLUMNS="88", NO_COLOR="1")
    return "\n".join([HEAD, *sections("atoll", arguments.parser())])


def sections(title: str, parser: argparse.ArgumentParser) -> list[str]:
    """Return the help of a command and of the commands below it."""
    parts = [section(title, parser)]
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to its commands
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for name, sub in action.choices.items():
                parts += sections(f"{title} {name}", sub)
    return parts


def section(title: str, parser: argparse.ArgumentParser) -> str:
    """Return the help of one command in a fence."""
    return f"## {title}\n\n```text\n{parser.format_help().rstrip()}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(render())
