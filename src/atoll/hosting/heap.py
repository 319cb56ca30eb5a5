"""The heap of a long-lived process: free memory goes back to the kernel, cycles are rarely sought.

The C library keeps freed memory that lies between memory in use. With answers of many sizes that
come and go for hours, that share grows, though what is in use does not.
"""

from __future__ import annotations

import ctypes
import functools
import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


OBJECTS_BEFORE_COLLECTION = 20_000
"""In place of 700: a cell makes hundreds of objects, hardly any in a cycle. A tenth of a node's CPU
time for an empty cell went into looking for cycles."""


def collect_rarely() -> None:
    """Look for cycles less often, and never again among the objects that exist by now."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS_BEFORE_COLLECTION, *gc.get_threshold()[1:])


def give_back() -> None:
    """Return free pages of this process's heap; nothing happens with another C library than glibc.

    It takes milliseconds: call it now and then, in a thread.
    """
    trim = _trim()
    if trim is not None:
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    try:
        result: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    return result
