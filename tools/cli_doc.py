"""Writes docs/cli.md and docs/cli/*.md from the help texts, so that they never differ.

A test compares them; run this after changing an option.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from atoll.cli import arguments

DOCS = Path(__file__).resolve().parent.parent / "docs"
HEAD = """# Command line

Generated from the help texts by `make docs`; each command has a page of its own:

{commands}

In `atoll repl`, `%help` lists the commands that begin with `%`.
"""


def pages() -> dict[str, str]:
    """Return the text of each page below docs/."""
    os.environ.update(COLUMNS="88", NO_COLOR="1")
    parser = arguments.parser()
    commands = _below(parser)
    links = "\n".join(f"- [`atoll {name}`](cli/{name}.md)" for name in commands)
    made = {"cli.md": f"{HEAD.format(commands=links)}\n{_section('##', 'atoll', parser)}"}
    for name, command in commands.items():
        made[f"cli/{name}.md"] = "\n".join(_sections(f"atoll {name}", command, "#"))
    return made


def _sections(title: str, parser: argparse.ArgumentParser, mark: str) -> list[str]:
    """Return the help of a command and of the commands below it."""
    parts = [_section(mark, title, parser)]
    for name, command in _below(parser).items():
        parts += _sections(f"{title} {name}", command, "##")
    return parts


def _below(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the commands below a parser."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to its commands
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            return dict(action.choices)
    return {}


def _section(mark: str, title: str, parser: argparse.ArgumentParser) -> str:
    """Return the help of one command in a fence."""
    return f"{mark} {title}\n\n```text\n{parser.format_help().rstrip()}\n```\n"


if __name__ == "__main__":
    (DOCS / "cli").mkdir(exist_ok=True)
    made = pages()
    for page in (DOCS / "cli").glob("*.md"):
        if f"cli/{page.name}" not in made:
            page.unlink()
    for name, text in made.items():
        (DOCS / name).write_text(text)
