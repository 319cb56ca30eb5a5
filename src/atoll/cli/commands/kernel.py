"""`atoll kernel`: makes the sandbox a kernel of Jupyter."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.errors import ConfigError
from atoll.extras import hint

if TYPE_CHECKING:
    from argparse import Namespace

NOT_THERE = 1


def command(args: Namespace) -> int:
    """Install or remove the kernel spec; return the exit code."""
    kernel = _load("jupyter_kernel")  # a missing package is said now, not by Jupyter later
    prefix = Path(args.prefix).expanduser().absolute() if args.prefix else None
    if args.action == "install":
        print(f"installed {kernel.install_spec(prefix=prefix)}")
        return 0
    if kernel.remove_spec(prefix=prefix):
        print("removed")
        return 0
    print("there is no kernel to remove")
    return NOT_THERE


def _load(name: str) -> Any:
    try:
        return import_module(f"atoll.integrations.{name}")
    except ImportError:
        raise ConfigError(f"`atoll kernel` needs ipykernel. {hint('jupyter')}") from None
