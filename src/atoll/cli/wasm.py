"""`atoll wasm`: build, install, status of what the `wasm` backend needs."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.backends.wasm import PythonSandbox, build, packages
from atoll.backends.wasm.progress import Progress
from atoll.cli import doctor
from atoll.cli.paint import Paint
from atoll.config import REPLConfig

if TYPE_CHECKING:
    from argparse import Namespace

    from atoll.backends.wasm.build import Built


def command(args: Namespace) -> int:
    """Do what was asked; the exit code."""
    return {"build": make, "install": install, "status": status}[args.action](args)


def make(args: Namespace) -> int:
    """Have the component, here or in a file."""
    if args.output:
        build.write_component(Path(args.output), Progress("atoll wasm"))
        _tell(f"written to {args.output}")
        return 0
    _tell(f"ready in {_component().folder}")
    return 0


def install(args: Namespace) -> int:
    """Put pure Python packages where every guest finds them."""
    new = packages.install(_component(), args.packages)
    for name in new:
        print(name)
    if not new:
        _tell("all of it is there already")
    return 0


def status(_args: Namespace) -> int:
    """Tell as `atoll doctor` does, of this backend alone, and what is installed for it."""
    name = PythonSandbox.backend
    backends = asyncio.run(doctor.examine([name], REPLConfig(backend=name)))
    print(doctor.describe(backends, Paint.of(sys.stdout)))
    if (built := build.find()) is not None:
        print(f"packages: {', '.join(packages.installed(built)) or 'none'}")
    return 0 if backends[name].usable else 1


def _component() -> Built:
    return build.ensure(None, Progress("atoll wasm"))


def _tell(text: str) -> None:
    print(f"atoll: {text}", file=sys.stderr, flush=True)
