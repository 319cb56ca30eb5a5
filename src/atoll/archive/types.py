"""What an archive tells of itself."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.files.types import Listing


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Something that can be read."""

    name: str
    """Relative, with `/` and without `..`; a page of a PDF is `page 1`."""
    size: int | None
    """Bytes as the archive declares them; None where that is known only after reading."""
    kind: str
    """`file` or `page`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """An entry that cannot be read, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A line of a member that the query is in."""

    member: str
    line: int
    text: str


class Hits(Listing[Hit]):
    """Lines, in the archive's order; whether there was more; members that could not be read."""

    def __init__(self, hits: list[Hit], *, truncated: bool, unread: tuple[Skipped, ...]) -> None:
        super().__init__(hits, truncated=truncated)
        self.unread = unread
