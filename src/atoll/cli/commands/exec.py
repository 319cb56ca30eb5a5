"""`atoll exec`: any program of this machine in a jail; its streams and exit code are ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.jail.supervisor.supervisor_process import supervisor

if TYPE_CHECKING:
    from argparse import Namespace


def command(args: Namespace) -> int:
    """Run the program; return its exit code."""
    if not args.explain:
        supervisor.start()  # it loads while we do
    from atoll.cli.exec_program import execute  # noqa: PLC0415

    return execute(args)
