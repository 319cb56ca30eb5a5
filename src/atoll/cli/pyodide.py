"""`atoll pyodide`: setup, install, status of what the `pyodide` backend needs."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from atoll.backends.pyodide import deno, distribution, image, wheels
from atoll.cli import doctor
from atoll.cli.paint import Paint
from atoll.config import REPLConfig

if TYPE_CHECKING:
    from argparse import Namespace


def command(args: Namespace) -> int:
    """Do what was asked; the exit code."""
    return {"setup": setup, "install": install, "status": status}[args.action](args)


def setup(_args: Namespace) -> int:
    """Have Pyodide and its memory image."""
    runner = deno.find()
    pyodide = distribution.setup()
    image.find(pyodide, runner)
    _tell(f"ready in {pyodide.folder.parent}")
    return 0


def install(args: Namespace) -> int:
    """Download wheels that every guest gets."""
    new = wheels.install(args.packages)
    for name in new:
        print(name)
    if not new:
        _tell("all of it is there already")
    return 0


def status(_args: Namespace) -> int:
    """Tell as `atoll doctor` does, of this backend alone."""
    backends = asyncio.run(doctor.examine([deno.BACKEND], REPLConfig(backend=deno.BACKEND)))
    print(doctor.describe(backends, Paint.of(sys.stdout)))
    return 0 if backends[deno.BACKEND].usable else 1


def _tell(text: str) -> None:
    print(f"atoll: {text}", file=sys.stderr, flush=True)
