"""An answer while it comes in: handed on piece by piece, and cut at the first stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.rlm.models.types import Finish, OnText


class Draft:
    """What a dialect reads an answer into."""

    def __init__(self, on_text: OnText | None = None, stop: Sequence[str] = ()) -> None:
        self.finish: Finish | None = None
        """Set as soon as the server has said how it ended: all of the text is there then."""
        self.counts: dict[str, Any] = {}
        """What the server said of tokens, in its own words."""
        self.handed = 0
        """Characters that `on_text` has been given: they cannot be taken back."""
        self._on_text = on_text
        self._stop = [one for one in stop if one]
        self._longest = max(map(len, self._stop), default=0)
        self._held = ""
        self._stopped = False
        self._parts: list[str] = []

    def add(self, text: str) -> None:
        """The next piece. What may be the beginning of a stop is held back until it is clear."""
        if self._stopped or not text:
            return
        self._held += plain(text)
        found = [at for one in self._stop if (at := self._held.find(one)) >= 0]
        if found:
            self._stopped = True
            self._hand(min(found))
            self._held = ""
        else:
            self._hand(max(0, len(self._held) - max(0, self._longest - 1)))

    @property
    def has_text(self) -> bool:
        """Whether any text has come."""
        return bool(self._parts or self._held or self._stopped)

    def end(self) -> tuple[str, Finish]:
        """The whole text, and how it ended."""
        self._hand(len(self._held))
        return "".join(self._parts), "stop" if self._stopped else self.finish or "other"

    def _hand(self, length: int) -> None:
        piece, self._held = self._held[:length], self._held[length:]
        if not piece:
            return
        self._parts.append(piece)
        if self._on_text is not None:
            self.handed += len(piece)
            self._on_text(piece)


def plain(text: str) -> str:
    """The text with what no UTF-8 can hold made into `?`: half characters out of bad JSON."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
