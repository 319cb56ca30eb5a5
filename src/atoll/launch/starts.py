"""How often a call may start a guest in place of one that was lost before it did anything."""

from __future__ import annotations

import asyncio
import time

from atoll.launch.handshake import START_SECONDS

MAX_STARTS = 4
PAUSE_SECONDS = 0.05
"""In which the loss of a killed zygote becomes known."""


class Starts:
    """The starts of one call: MAX_STARTS, and none after START_SECONDS.

    All that may start a guest again takes part in one count: the start itself, and a first cell
    that the guest did not live to read.
    """

    def __init__(self) -> None:
        self._left = MAX_STARTS - 1
        self._last = time.monotonic() + START_SECONDS

    async def again(self) -> bool:
        """Return whether another guest may be started, after a pause."""
        if not self._left or time.monotonic() > self._last:
            return False
        self._left -= 1
        await asyncio.sleep(PAUSE_SECONDS)
        return True
