"""Notices that the other side of a connection has stopped: it is pinged when it is silent.

An execution may wait for its turn and then run for long, so there is no limit for one answer. A
peer that lives answers a ping meanwhile, with the calls that it works on; one that is stopped does
not. Every peer answers pings (`Peer`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atoll.rpc.connection import Peer

NOISY_CHECKS = 12
"""After so many checks without an answer to a ping, a peer that says other things is given up."""


class Keepalive:
    """Ends a connection whose other side has been silent for `seconds`, at the latest.

    Without `when_idle` it looks only while calls wait for an answer.
    """

    def __init__(self, peer: Peer, seconds: float, *, when_idle: bool) -> None:
        self._peer, self._seconds, self._when_idle = peer, seconds, when_idle
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._ping: asyncio.Task[None] | None = None
        self._pinged, self._unanswered_checks = 0.0, 0
        if when_idle:
            self.start()

    def start(self) -> None:
        """Look from now on, unless that goes on already."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds / 2, self._check)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        """Ping a peer that is silent; end the connection if it does not answer that either.

        Silence alone proves nothing: our own loop may have been blocked, and asked for no answer.
        Noise proves nothing either: a peer that only prints is pinged too, less often. It has
        some checks to answer instead of a time, as our loop may have read nothing meanwhile.
        """
        self._timer, silent = None, self._peer.silent_seconds
        if self._peer.ended or not (self._when_idle or self._peer.waits):
            return
        since_ping = self._loop.time() - self._pinged
        if self._ping is not None:
            self._unanswered_checks += 1
            quiet = min(silent, since_ping) >= self._seconds / 2
            if quiet or self._unanswered_checks >= NOISY_CHECKS:
                seconds = max(silent, since_ping)
                name = self._peer.name
                self._peer.end(f"{name} has not answered for {seconds:.1f} s, and was given up")
                return
        self._timer = self._loop.call_later(self._seconds / 4, self._check)
        if self._ping is None and (silent >= self._seconds / 4 or since_ping >= self._seconds):
            self._pinged, self._unanswered_checks = self._loop.time(), 0
            self._ping = self._loop.create_task(self._ask_for(self._peer.sent_calls))
            self._ping.add_done_callback(self._forget_ping)

    async def _ask_for(self, calls: list[str]) -> None:
        """Ask whether the peer lives; give up those of our calls that it does not work on.

        What it answered before it answered this has arrived before this.
        """
        answer = (await self._peer.call("ping", {})).value
        known = answer.get("calls") if isinstance(answer, dict) else None
        for ident in calls:
            if not isinstance(known, list) or ident not in known:
                name = self._peer.name
                self._peer.give_up(ident, f"{name} lives, and does not know this call any more")

    def _forget_ping(self, ping: asyncio.Task[None]) -> None:
        self._ping = None
        if not ping.cancelled():
            ping.exception()  # the calls that wait have it too
