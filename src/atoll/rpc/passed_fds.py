"""File descriptors that cross a socket together with a message."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from atoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable


class PassedFds:
    """File descriptors that came with a message. Those that are not taken are closed."""

    def __init__(self, fds: Iterable[int] = ()) -> None:
        self._fds = list(fds)

    def __len__(self) -> int:
        return len(self._fds)

    def take(self) -> int:
        """Return the next descriptor, which the caller closes; ConfigError if there is none."""
        if not self._fds:
            raise ConfigError("a descriptor was announced and did not come")
        return self._fds.pop(0)

    def hand_over(self) -> list[int]:
        """Return all that are left; the caller closes them."""
        left, self._fds = self._fds, []
        return left

    def close(self) -> None:
        """Close what is left."""
        close_all(self.hand_over())


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors; one that is closed already is no fault."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def size_of(fds: Iterable[int]) -> int:
    """Return the bytes in the memory files."""
    return sum(os.fstat(fd).st_size for fd in fds)
