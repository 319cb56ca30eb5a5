"""Memory that is free goes back to the kernel.

The C library keeps freed memory that lies between memory in use. With answers of many sizes that
come and go for hours, that share grows, though what is in use does not.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


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
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    return found
