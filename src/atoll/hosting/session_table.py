"""All sessions of the daemon: who may use which, how many there may be, which are saved to disk."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
import time
from typing import TYPE_CHECKING, Any, TypeVar

from atoll.errors import AtollError, BusyError, SandboxClosedError
from atoll.hosting import heap
from atoll.hosting.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from atoll.config import SandboxConfig
    from atoll.hosting.client_callbacks import ClientCallbacks
    from atoll.hosting.limits import DaemonLimits
    from atoll.hosting.sessions import Opener, Storage
    from atoll.sandbox.base import BaseSandbox

T = TypeVar("T")
_LOG = logging.getLogger("atoll.daemon")
GIVE_BACK_SECONDS = 60.0
"""How often free memory goes back to the kernel."""
MAX_ENDING = 16
"""Sessions that are being ended after their clients had an answer; then the next waits."""


class SessionTable:
    """Holds the sessions. Only the connection that opened one, or a token, leads to it."""

    def __init__(self, opener: Opener, storage: Storage, limits: DaemonLimits) -> None:
        self._opener, self._storage, self._limits = opener, storage, limits
        self._sessions: set[Session] = set()
        self._kept: dict[bytes, Session] = {}
        self._opening = 0
        self._ending: set[asyncio.Task[Any]] = set()
        self._gave_back = time.monotonic()

    @property
    def count(self) -> int:
        """Sessions that have not ended."""
        return sum(not session.over for session in self._sessions)

    @property
    def live(self) -> int:
        """Sessions that take memory."""
        return sum(session.live for session in self._sessions)

    @property
    def memory(self) -> int:
        """Bytes that sessions take, as last measured."""
        return sum(session.memory for session in self._sessions if session.live)

    async def open(
        self, config: SandboxConfig, callbacks: ClientCallbacks, box: BaseSandbox | None = None
    ) -> Session:
        """A started session; BusyError if there are too many."""
        known, most = len(self._sessions) + self._opening, self._limits.max_sessions
        if known >= most and self.count + self._opening >= most:
            raise BusyError(f"the daemon holds {self.count} sessions: try again later")
        session = Session(secrets.token_hex(16), config, callbacks, self._opener, self._storage)
        self._opening += 1
        try:
            if known >= self._limits.max_live:
                await self.make_room()
            await session.start(box)
        finally:
            self._opening -= 1
        self._sessions.add(session)
        return session

    def restore(self, ident: str, config: SandboxConfig, callbacks: ClientCallbacks) -> Session:
        """Return a session that an earlier process saved to disk under its ident."""
        session = Session(ident, config, callbacks, self._opener, self._storage)
        self._sessions.add(session)
        return session

    def keep(self, session: Session) -> str:
        """Keep the session after its connection ends; return the token that leads to it."""
        token = secrets.token_urlsafe(32)
        session.digest = _digest(token)
        self._kept[session.digest] = session
        return token

    def attach(self, token: str) -> Session:
        """Return the session of a token."""
        session = self._kept.get(_digest(token))
        if session is None:
            raise SandboxClosedError(
                "no session has this token: the session has ended, or the token is wrong"
            )
        return session

    async def end(self, session: Session) -> None:
        """End a session and forget it."""
        self._forget(session)
        await session.end()

    async def leave(self, session: Session, why: str) -> None:
        """Part from a session that goes on elsewhere, and forget it."""
        self._forget(session)
        await session.leave(why)

    async def end_soon(self, session: Session) -> None:
        """Start to end a session; wait for its end only if it shares folders with its client.

        The kernel takes longer to end a guest than the guest took to start and run.
        """
        crowded = len(self._ending) >= MAX_ENDING
        ending = asyncio.ensure_future(self.end(session))
        self._ending.add(ending)
        ending.add_done_callback(self._ended)
        await asyncio.sleep(0)  # the kill is sent before the client has its answer
        if session.config.workspace is not None or session.config.policy.mounts:
            await asyncio.shield(ending)
        while crowded and len(self._ending) > MAX_ENDING:
            await asyncio.wait(self._ending, return_when=asyncio.FIRST_COMPLETED)

    async def _complete(self, work: Coroutine[Any, Any, T]) -> T:
        """Save or end a session; if the caller is cancelled meanwhile, `end_all` waits for it."""
        task = asyncio.ensure_future(work)
        self._ending.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, ending: asyncio.Task[Any]) -> None:
        self._ending.discard(ending)
        if not ending.cancelled() and (fault := ending.exception()) is not None:
            _LOG.warning("a session could not be ended cleanly: %s", fault)

    async def end_all(self) -> None:
        """End every session."""
        ends = [self.end(session) for session in self._sessions]
        await asyncio.gather(*ends, *self._ending, return_exceptions=True)

    async def make_room(self) -> None:
        """Save the sessions that were idle longest to disk while too much is in memory."""
        if not self._crowded():
            return
        for session in sorted(self._sessions, key=lambda session: session.quiet_since):
            if not self._crowded():
                return
            with contextlib.suppress(AtollError):
                if await self._complete(session.hibernate()):
                    _LOG.info("saved a session to disk: there are too many in memory")

    async def sweep(self) -> None:
        """Save or end sessions that were idle for too long; forget those never used again."""
        now = time.monotonic()
        for session in list(self._sessions):
            unused = now - session.used
            if not session.idle:
                continue
            if unused > self._limits.idle_seconds + self._limits.keep_seconds:
                self._forget(session)
                await self._complete(session.expire(f"it was unused for {unused:.0f} s"))
            elif session.live and now - session.quiet_since > self._limits.idle_seconds:
                await self._complete(self._retire(session))
        await self.make_room()
        await asyncio.to_thread(self._storage.store.sweep)
        if now - self._gave_back > GIVE_BACK_SECONDS:
            self._gave_back = now
            await asyncio.to_thread(heap.give_back)

    async def _retire(self, session: Session) -> None:
        if await session.hibernate():
            _LOG.info("saved a session to disk: idle")
        elif session.idle and not session.frozen and (why := session.unsavable):
            _LOG.info("ended a session: idle, and it cannot be saved")
            idle = f"it was idle for {self._limits.idle_seconds:g} s and ended"
            await session.expire(f"{idle}, as it could not be saved: {why}")

    def _crowded(self) -> bool:
        return (
            self.live + self._opening > self._limits.max_live
            or self.memory > self._limits.max_memory_bytes
        )

    def _forget(self, session: Session) -> None:
        self._sessions.discard(session)
        if session.digest is not None:
            self._kept.pop(session.digest, None)


def _digest(token: str) -> bytes:
    """Tokens are found by their hash, so the time that it takes tells nothing of them."""
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
