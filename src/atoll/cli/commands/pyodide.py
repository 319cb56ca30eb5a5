"""`atoll pyodide`: downloads, extends and shows what the `pyodide` backend needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.backends.pyodide import deno, distribution, image, wheels
from atoll.cli.commands import doctor
from atoll.cli.terminal.standard_streams import say

if TYPE_CHECKING:
    from argparse import Namespace


def command(args: Namespace) -> int:
    """Run the subcommand; return the exit code."""
    return {"setup": setup, "install": install, "status": status}[args.action](args)


def setup(_args: Namespace) -> int:
    """Download Pyodide and build its memory image."""
    runner = deno.find()
    pyodide = distribution.setup()
    image.find(pyodide, runner)
    say(f"ready in {pyodide.folder.parent}")
    return 0


def install(args: Namespace) -> int:
    """Download packages for every guest."""
    new = wheels.install(args.packages)
    for name in new:
        print(name)
    if not new:
        say("everything is installed already")
    return 0


def status(_args: Namespace) -> int:
    """Print what `atoll doctor` prints about this backend."""
    return 0 if doctor.show(deno.BACKEND) else 1
