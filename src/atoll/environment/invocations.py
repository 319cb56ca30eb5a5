"""How often each tool was called: an answer may have to wait until a model has looked."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

EXPLORING = (
    "peek", "grep", "list_dir", "code_search", "doc_search", "archive_open", "archive_file",
    "archive_search", "web_fetch",
)  # fmt: skip


class InvocationLog:
    """Counts calls; tools run in threads."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()
        self._explored = 0
        self._lock = threading.Lock()

    def count(self, name: str) -> None:
        """One more."""
        with self._lock:
            self._calls[name] += 1

    def answered(self, name: str, answer: Any) -> None:
        """It gave this: only what there was something to see in counts as looking."""
        if name in EXPLORING and _shows(answer):
            with self._lock:
                self._explored += 1

    @property
    def calls(self) -> dict[str, int]:
        """Calls by name."""
        with self._lock:
            return dict(self._calls)

    @property
    def explored(self) -> int:
        """Calls that looked at something."""
        return self._explored


def _shows(answer: Any) -> bool:
    """Not so what is elsewhere, an empty text, a folder that is none."""
    if not isinstance(answer, dict):
        return bool(answer) or isinstance(answer, list)
    return bool(answer.get("text") or answer.get("names") or answer.keys() & {"hits", "members"})
