"""Writes docs/cli.md from the command line's own help, so that the two never differ. `make docs`.

A test compares them; run this after changing an option.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from atoll.cli import arguments

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
HEAD = """# Command line

Made from the help texts by `make docs`.

| exit code | means |
| --- | --- |
| the guest's own | `sys.exit(n)`; 1 if the code raised |
| 2 | it did not run: a bad option, a missing file, no backend that is strong enough |
| 124, 130, 137, 152 | timeout, cancelled (Ctrl-C), out of memory, out of CPU time |
| 128 + n | the guest was ended by signal n |

In `atoll repl`, `%help` lists the commands that begin with `%`.
"""


def render() -> str:
    """The page as it has to be."""
    os.environ.update(COLUMNS="88", NO_COLOR="1")
    return "\n".join([HEAD, *sections("atoll", arguments.parser())])


def sections(title: str, parser: argparse.ArgumentParser) -> list[str]:
    """One command's help, and that of the commands below it."""
    parts = [section(title, parser)]
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to its commands
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for name, sub in action.choices.items():
                parts += sections(f"{title} {name}", sub)
    return parts


def section(title: str, parser: argparse.ArgumentParser) -> str:
    """One command's help, fenced."""
    return f"## {title}\n\n```text\n{parser.format_help().rstrip()}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(render())
