"""The list of an archive's entries: safe and unique names, limited in number.

The host writes no files with these names, but guest code may: names that lead out of a folder are
skipped and reported.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atoll.agent.archive.limits import ArchiveLimits, Clock

_DRIVE = re.compile(r"[A-Za-z]:")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SHOWN = 200


class Catalog:
    """Members, each with the reader's own key, and skipped entries."""

    def __init__(self, limits: ArchiveLimits, clock: Clock) -> None:
        self._limits, self._clock = limits, clock
        self.keys: dict[str, Any] = {}
        self.sizes: dict[str, int | None] = {}
        self.skipped: list[tuple[str, str]] = []
        self.total = 0

    def add(self, raw_name: str, key: object, size: int | None, *, refused: str = "") -> None:
        """Add an entry; `refused` says why it cannot be read."""
        self._clock.check()
        self.count(len(self.keys) + len(self.skipped) + 1)
        length = len(raw_name.encode("utf-8", "surrogateescape"))
        self._limits.check("max_name_bytes", length, f"the name {raw_name[:40]!r}... in bytes")
        name = _plain(raw_name)
        reason = refused or _unsafe(name) or ("duplicate name" if name in self.keys else "")
        if reason:
            self.skipped.append((_CONTROL.sub("?", name)[:_SHOWN], reason))
            return
        self.keys[name], self.sizes[name] = key, size
        self.total += size or 0
        self._limits.check("max_total_bytes", self.total, "what comes out in bytes")

    def count(self, entries: int) -> None:
        """Raise ArchiveLimitError if there are too many entries."""
        self._limits.check("max_members", entries, "the number of entries")


def _plain(name: str) -> str:
    """Return the name with slashes, without `./`, and with characters that UTF-8 can encode."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace").replace("\\", "/")
    while text.startswith("./"):
        text = text[2:].lstrip("/")
    return text


def _unsafe(name: str) -> str:
    if not name or _CONTROL.search(name):
        return "unsafe name: empty, or with control characters"
    if name.startswith("/") or _DRIVE.match(name):
        return "unsafe name: absolute"
    if ".." in name.split("/"):
        return "unsafe name: leads out by .."
    return ""
