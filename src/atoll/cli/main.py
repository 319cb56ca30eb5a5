"""The entry point of `atoll`: reads the arguments, runs one command, turns errors into one line."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, cast

from atoll.cli import arguments
from atoll.errors import AtollError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

USAGE_ERROR = 2
INTERRUPTED = 130
BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` names; the exit code."""
    args = arguments.parser().parse_args(argv)
    home = import_module(f"atoll.cli.{args.command.replace('-', '_')}")
    command = cast("Callable[[object], int]", home.command)
    try:
        code = command(args)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read us has gone, as in `atoll doctor | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except AtollError as exc:
        print(f"atoll: {exc}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


if __name__ == "__main__":
    sys.exit(main())
