"""The time of day as it was when the service began, and as time has passed since.

Lives, expiries and stored times are reckoned by it: a clock that is set forward ends no session
and forgets no idempotency key, one that is set back lets nothing live on.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

_BASE = time.time() - time.monotonic()


def now() -> float:
    """Return seconds since 1970."""
    return _BASE + time.monotonic()


def moment(seconds: float) -> str:
    """Return a time in RFC 3339; a guest may give a file any time, also one no calendar has."""
    try:
        found = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        found = datetime.fromtimestamp(0, UTC)
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")
