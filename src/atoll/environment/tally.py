"""How often each tool was called: an answer may have to wait until a model has looked."""

from __future__ import annotations

import threading
from collections import Counter

EXPLORING = (
    "peek", "grep", "list_dir", "code_search", "doc_search", "archive_open", "archive_file",
    "archive_search", "web_fetch",
)  # fmt: skip


class Tally:
    """Counts calls; tools run in threads."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()
        self._lock = threading.Lock()

    def count(self, name: str) -> None:
        """One more."""
        with self._lock:
            self._calls[name] += 1

    @property
    def calls(self) -> dict[str, int]:
        """Calls by name."""
        with self._lock:
            return dict(self._calls)

    @property
    def explored(self) -> int:
        """Calls that looked at something."""
        calls = self.calls
        return sum(calls.get(name, 0) for name in EXPLORING)
