"""Saved sessions in the daemon's own memory: for as long as it lives, up to a number of bytes."""

from __future__ import annotations

import time

from atoll.errors import StateError


class MemoryStateStore:
    """Keeps blobs for `ttl_seconds`, and refuses more than `max_bytes` in all."""

    def __init__(self, ttl_seconds: float, max_bytes: int) -> None:
        self._ttl, self._max_bytes = ttl_seconds, max_bytes
        self._blobs: dict[str, tuple[float, bytes]] = {}

    def put(self, session_id: str, blob: bytes) -> None:
        """Keep a session's state; StateError if there is no room for it."""
        taken = sum(len(one) for _, one in self._blobs.values())
        if taken + len(blob) > self._max_bytes:
            raise StateError(f"no room for a state of {len(blob):,} bytes")
        self._blobs[session_id] = (time.monotonic(), blob)

    def get(self, session_id: str) -> bytes | None:
        """A session's state; None if there is none, or none any more."""
        since, blob = self._blobs.get(session_id, (0.0, None))
        return blob if blob is not None and time.monotonic() - since < self._ttl else None

    def delete(self, session_id: str) -> None:
        """Forget a session's state."""
        self._blobs.pop(session_id, None)

    def sweep(self) -> None:
        """Forget what has been kept for too long."""
        for session_id in list(self._blobs):
            if self.get(session_id) is None:
                self.delete(session_id)
