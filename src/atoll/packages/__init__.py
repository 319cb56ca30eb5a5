"""Packages by name: resolved once, built in a jail, stored read-only, shared by all guests.

requirements ──▶ download ──wheels──▶ build ────▶ store ────▶ guests: /opt/atoll/packages
 (checked)       pip, confined,       unpacked    under its hash,
                 has a network        in a jail   evicted by size
"""

from atoll.packages.environment import ensure, find
from atoll.packages.store import Environment, Hold
from atoll.packages.target import Target, for_interpreter

__all__ = ["Environment", "Hold", "Target", "ensure", "find", "for_interpreter"]
