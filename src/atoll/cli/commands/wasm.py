"""`atoll wasm`: builds, extends and shows what the `wasm` backend needs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.backends.wasm import PythonSandbox, build, packages
from atoll.cli.commands import doctor
from atoll.cli.terminal.standard_streams import say
from atoll.errors import ConfigError
from atoll.packages.progress import Progress

if TYPE_CHECKING:
    from argparse import Namespace

    from atoll.backends.wasm.build import Built


def command(args: Namespace) -> int:
    """Run the subcommand; return the exit code."""
    return {"build": make, "install": install, "status": status}[args.action](args)


def make(args: Namespace) -> int:
    """Build the component, in the cache or as a file."""
    if args.output:
        if not os.access(Path(args.output).absolute().parent, os.W_OK):
            raise ConfigError(f"--output: cannot write to the folder of {args.output}")
        build.write_component(Path(args.output), Progress("atoll wasm"))
        say(f"written to {args.output}")
        return 0
    say(f"ready in {_component().folder}")
    return 0


def install(args: Namespace) -> int:
    """Install pure Python packages for every guest."""
    new = packages.install(_component(), args.packages)
    for name in new:
        print(name)
    if not new:
        say("everything is installed already")
    return 0


def status(_args: Namespace) -> int:
    """Print what `atoll doctor` prints about this backend, and the installed packages."""
    usable = doctor.show(PythonSandbox.backend)
    if usable and (built := build.find()) is not None:
        print(f"packages: {', '.join(packages.installed(built)) or 'none'}")
    return 0 if usable else 1


def _component() -> Built:
    return build.ensure(None, Progress("atoll wasm"))
