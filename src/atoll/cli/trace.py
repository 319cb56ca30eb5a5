"""`atoll trace`: a run's trajectory in the terminal, or as one page for a browser."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

from atoll.cli.paint import Paint
from atoll.errors import ConfigError
from atoll.rlm.trajectory import html, reader
from atoll.rlm.trajectory.show import show

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable

    from atoll.rlm.trajectory.reader import Trajectory


def command(args: Namespace) -> int:
    """Show a trajectory as asked; the exit code."""
    trajectory = reader.read(args.file)
    if args.action == "html":
        return _page(trajectory, args.file, args.output)
    paint = Paint(enabled=False) if args.no_color else Paint.of(sys.stdout)
    width = shutil.get_terminal_size().columns
    for line in show(trajectory, width=width, full=args.full, brush=paint):
        _print(line)
    return 0


def _page(trajectory: Trajectory, source: str, output: str | None) -> int:
    """Write the page beside the trajectory, or where it was asked for."""
    target = output or f"{os.path.splitext(source)[0]}.html"
    parts = html.page(trajectory)
    if target == "-":
        sys.stdout.buffer.writelines(part.encode() for part in parts)
        return 0
    if os.path.exists(target) and os.path.samefile(target, source):
        raise ConfigError(f"{target!r} is the trajectory itself: name another file with -o")
    _write(target, parts)
    print(target)
    return 0


def _write(target: str, parts: Iterable[str]) -> None:
    """A page is as private as its trajectory."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(target, flags, 0o600), "w", encoding="utf-8") as file:
            file.writelines(parts)
    except OSError as exc:
        raise ConfigError(f"the page {target!r} cannot be written: {exc}") from exc


def _print(line: str) -> None:
    """A terminal that has no such character shows another."""
    encoding = sys.stdout.encoding or "utf-8"
    print(line.encode(encoding, "replace").decode(encoding))
