"""The time of day as it was when the service began, and as time has passed since.

Lives, expiries and stored times are reckoned by it: a clock that is set forward ends no session
and forgets no idempotency key, one that is set back lets nothing live on.
"""

from __future__ import annotations

import time

from atoll.errors import BusyError

SHORT_WAIT_MS = 50
"""Below it a wait is not taken off the time limit."""
_BASE = time.time() - time.monotonic()


def now() -> float:
    """Return seconds since 1970."""
    return _BASE + time.monotonic()


def time_left(limit_ms: float, begun: float) -> float:
    """Return the rest of a time limit that counts from acceptance; BusyError if nothing is."""
    waited = (time.monotonic() - begun) * 1000
    if waited >= limit_ms:
        raise BusyError("the time limit passed before it was its turn: nothing ran")
    return limit_ms - waited if waited > SHORT_WAIT_MS else limit_ms
