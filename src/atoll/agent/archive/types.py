"""Data about an archive: members, skipped entries, hits of a search."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.files.types import Listing


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A file or page that can be read."""

    name: str
    """Relative, with `/` and without `..`; a page of a PDF is `page 1`."""
    size: int | None
    """Bytes as the archive declares them; None if only reading shows them."""
    kind: str
    """`file` or `page`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """An entry that cannot be read, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A line of a member that matches the query."""

    member: str
    line: int
    text: str


class Hits(Listing[Hit]):
    """Lines in the archive's order, whether there are more, and members that are unreadable."""

    def __init__(self, hits: list[Hit], *, truncated: bool, unread: tuple[Skipped, ...]) -> None:
        super().__init__(hits, truncated=truncated)
        self.unread = unread
