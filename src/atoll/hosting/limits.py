"""What the daemon may use, and what one client may ask of it."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields

from atoll.policy import check_positive


def _half_of_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonLimits:
    """Bounds of one daemon; each is a positive number."""

    max_running: int = max(4, 2 * (os.cpu_count() or 1))
    """Executions at one time; those that wait for their client do not count."""
    max_queue: int = 256
    """Executions that wait for their turn; past it, BusyError."""
    max_sessions: int = 1024
    max_sessions_per_connection: int = 256
    max_connections: int = 2048
    max_live: int = 128
    """Sessions in memory; past it, the one idle for longest is saved to disk, if it can be."""
    max_memory_bytes: int = _half_of_memory()
    """What live sessions have used together at their peaks; past it, the same."""
    idle_seconds: float = 3600
    """After so long without a call a session is saved to disk; if it cannot be, it ends."""
    keep_seconds: float = 86_400
    """How much longer it is kept without a call: on disk, or in memory if the disk is full."""
    store_bytes: int = 4 << 30
    """What saved sessions may take on disk."""
    message_seconds: float = 30
    """How long one message may take to arrive."""

    def __post_init__(self) -> None:
        for field in fields(self):
            check_positive(field.name, getattr(self, field.name))
