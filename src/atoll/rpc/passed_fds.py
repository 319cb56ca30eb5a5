"""What crosses beside a message: file descriptors, or bytes."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.errors import ConfigError
from atoll.rpc import blobs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from atoll.rpc.blobs import Buffer


class PassedFds:
    """What came beside a message, in order. Descriptors that are not taken are closed.

    A Unix socket passes descriptors, a stream passes bytes. Each can be taken as the other.
    """

    def __init__(self, items: Iterable[int | Buffer] = ()) -> None:
        self._items = list(items)

    def __len__(self) -> int:
        return len(self._items)

    def take(self) -> int:
        """Return the next item as a descriptor, to be closed; ConfigError if none came."""
        item = self._next()
        return item if isinstance(item, int) else blobs.write(item)

    def take_bytes(self, most: int = blobs.MAX_BLOB_BYTES) -> Buffer:
        """Return the bytes of the next item; ConfigError if none came, or more than `most`."""
        item = self._next()
        if isinstance(item, int):
            return blobs.read(item, most)
        if len(item) > most:
            raise ConfigError(f"{len(item):,} bytes came beside a message; at most {most:,} may")
        return item

    def hand_over(self) -> list[int | Buffer]:
        """Return all that are left; the caller closes the descriptors."""
        left, self._items = self._items, []
        return left

    def close(self) -> None:
        """Close the descriptors that are left."""
        close_all(self.hand_over())

    def _next(self) -> int | Buffer:
        if not self._items:
            raise ConfigError("a descriptor was announced and did not come")
        return self._items.pop(0)


NO_FDS = PassedFds()
"""What comes beside most messages."""


@dataclass(slots=True)
class Reply:
    """The result of a request, and what comes beside it."""

    value: Any
    passed_fds: PassedFds = NO_FDS


def close_all(items: Iterable[int | Buffer]) -> None:
    """Close the descriptors among `items`; those that are closed already are ignored."""
    for item in items:
        if isinstance(item, int):
            with contextlib.suppress(OSError):
                os.close(item)


def size_of(items: Iterable[int | Buffer]) -> int:
    """Return how many bytes there are, those in memory files included."""
    return sum(os.fstat(item).st_size if isinstance(item, int) else len(item) for item in items)
