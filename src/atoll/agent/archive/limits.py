"""The limits of an archive, which are enforced while it is read."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields

from atoll.errors import ArchiveLimitError
from atoll.policy import MIB, check_positive

FREE_BYTES = MIB
"""Unpacked bytes up to which the ratio is not checked: it says nothing about a small file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveLimits:
    """The limits of one archive; an error names the limit that was exceeded."""

    max_archive_bytes: int = 256 * MIB
    """Bytes of the archive file."""
    max_member_bytes: int = 64 * MIB
    """Bytes of one unpacked member."""
    max_total_bytes: int = 512 * MIB
    """Bytes of all unpacked members."""
    max_ratio: float = 200
    """Unpacked bytes per packed byte, of a member and of the whole archive, from 1 MiB on."""
    max_members: int = 10_000
    """Entries of any kind, or pages."""
    max_name_bytes: int = 1024
    max_header_bytes: int = 4 * MIB
    """Bytes of a zip's directory, or of one header of a tar."""
    max_depth: int = 3
    """Depth of archives within archives, the outermost included."""
    max_seconds: float = 30
    """One operation."""
    max_memory_bytes: int = 1024 * MIB
    """Address space of the reading process."""

    def __post_init__(self) -> None:
        for one in fields(self):
            check_positive(one.name, getattr(self, one.name))

    def check(self, limit: str, value: float, what: str) -> None:
        """Raise ArchiveLimitError if a value exceeds the limit of this name."""
        most = getattr(self, limit)
        if value > most:
            raise ArchiveLimitError(limit, value=value, most=most, what=what)

    def check_ratio(self, unpacked: int, packed: int, what: str) -> None:
        """Raise ArchiveLimitError if the ratio of unpacked to packed bytes is too high."""
        if unpacked > FREE_BYTES:
            self.check("max_ratio", round(unpacked / max(packed, 1), 1), f"the ratio of {what}")


class Clock:
    """The deadline of one operation, checked after every piece of work."""

    def __init__(self, limits: ArchiveLimits) -> None:
        self._limits = limits
        self.start()

    def start(self) -> None:
        """Start the time of an operation."""
        self._start = time.monotonic()

    @property
    def late(self) -> bool:
        """Whether the operation has taken too long."""
        return time.monotonic() - self._start > self._limits.max_seconds

    def check(self) -> None:
        """Raise ArchiveLimitError if the operation has taken too long."""
        if self.late:
            most = self._limits.max_seconds
            raise ArchiveLimitError("max_seconds", most=most, what="the time in seconds")
