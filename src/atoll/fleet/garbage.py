"""Cyclic garbage in the processes of a fleet: drivers and nodes, which run nothing else."""

from __future__ import annotations

import gc

OBJECTS = 20_000
"""Made before they are looked through, in place of 700: a cell makes hundreds, in hardly a cycle.
About a tenth of a node's CPU time for an empty cell went into looking."""


def collect_rarely() -> None:
    """Look for cycles less often, and never again among the objects that exist by now."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS, *gc.get_threshold()[1:])
