"""`atoll trace`: show the record of a run, or write it as an HTML page or as conversations."""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import TYPE_CHECKING

from atoll.agent.trajectory import html, reader
from atoll.agent.trajectory.show import show
from atoll.agent.trajectory.terminal_text import Colours
from atoll.errors import ConfigError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable

    from atoll.agent.trajectory.reader import Trajectory


def command(args: Namespace) -> int:
    """Show a record as asked; return the exit code."""
    trajectory = reader.read(args.file)
    if not trajectory.events and (trajectory.skipped or trajectory.torn):
        raise ConfigError(
            f"{args.file} is not a record of `atoll ask --trace`: no line can be read"
        )
    if args.action == "html":
        return _page(trajectory, args.file, args.output)
    if args.action == "export":
        # Write the conversations with models as JSON lines, to a file or to stdout.
        rows = trajectory.conversations()
        if not rows:
            raise ConfigError("there is no conversation with a model in this record")
        lines = (json.dumps(row) + "\n" for row in rows)
        if args.output is None or args.output == "-":
            sys.stdout.writelines(lines)
            return 0
        return _write(lines, args.output, args.file)
    colours = Colours(enabled=False) if args.no_color else Colours.of(sys.stdout)
    width = shutil.get_terminal_size().columns
    for line in show(trajectory, width=width, full=args.full, brush=colours):
        _print(line)
    return 0


def _page(trajectory: Trajectory, source: str, output: str | None) -> int:
    """Write the page next to the record, or to the file that was named."""
    target = output or f"{os.path.splitext(source)[0]}.html"
    parts = html.page(trajectory)
    if target == "-":
        sys.stdout.buffer.writelines(part.encode() for part in parts)
        return 0
    return _write(parts, target, source)


def _write(parts: Iterable[str], target: str, source: str) -> int:
    """Write a file that only its owner can read; raise ConfigError if it is the record itself."""
    if os.path.exists(target) and os.path.samefile(target, source):
        raise ConfigError(f"{target!r} is the record itself: name another file with -o")
    reader.write_private(target, parts)
    print(target)
    return 0


def _print(line: str) -> None:
    """Print a line; a character that the terminal's encoding lacks becomes `?`."""
    encoding = sys.stdout.encoding or "utf-8"
    print(line.encode(encoding, "replace").decode(encoding))
