"""Packages by name: resolved once, built in a jail, stored read-only, shared by all guests.

requirements ──▶ download ──wheels──▶ build ────▶ store ────▶ guests: /opt/atoll/packages
 (checked)       pip, confined,       unpacked    under its hash,
                 has a network        in a jail   evicted by size

Most sandboxes have no packages, so each name is loaded on first use: reading archives and pip's
settings took about a tenth of the CPU time in which `atoll run` imports its modules.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atoll.packages.environment import ensure, find
    from atoll.packages.store import Environment, Hold
    from atoll.packages.target import Target, for_interpreter

__all__ = ["Environment", "Hold", "Target", "ensure", "find", "for_interpreter"]
_HOMES = {
    "ensure": "environment", "find": "environment", "Environment": "store", "Hold": "store",
    "Target": "target", "for_interpreter": "target",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load a name from its module on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
