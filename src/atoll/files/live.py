"""Files of a running sandbox as a service needs them: read in parts, watched, written to."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from atoll.files.base import Files

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from atoll.files.watch import Change

MAX_ENTRIES = 10_000
"""That `inspect` returns."""


class FileReader(Protocol):
    """A regular file that is open for reading, until `close`."""

    @property
    def size(self) -> int:
        """How many bytes it had when it was opened."""
        ...

    @property
    def tag(self) -> str:
        """A text that changes whenever the file is changed or replaced."""
        ...

    async def read(self, start: int, length: int) -> bytes:
        """Return bytes from `start` on; fewer if the file has become shorter."""
        ...

    def close(self) -> None:
        """Let the file go."""


class FolderWatch(Protocol):
    """Collects changes below a folder until it is closed."""

    def changes(self, pause: float) -> AsyncIterator[list[Change]]:
        """Yield changes as they come, several at a time; an empty list after a pause."""
        ...

    def close(self) -> None:
        """Stop watching."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_exc: object) -> None: ...


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, folder or link, as the kernel describes it."""

    path: str
    mode: int
    size: int
    modified: float
    target: str = ""
    """Where a link leads to; relative if its own path is."""
    target_mode: int = 0
    """The mode of what is there; 0 if nothing is, or if it is in none of the folders."""


class LiveFiles(Files):
    """Files that can also be used beside the cells; OSError says why something cannot be had."""

    @abstractmethod
    async def open_file(self, path: str) -> FileReader:
        """Open a file to read parts of it."""

    @abstractmethod
    async def inspect(self, path: str, depth: int = 0) -> list[Entry]:
        """Describe a path, or the contents of a folder, `depth` levels down; links stay links."""

    @abstractmethod
    async def watch(self, path: str, *, recursive: bool = False) -> FolderWatch:
        """Begin to collect the changes of a folder."""

    @abstractmethod
    async def send(self, path: str, data: bytes) -> bool:
        """Write to a FIFO that the guest reads; return False if it is missing.

        BusyError if the guest does not take the bytes in time.
        """
