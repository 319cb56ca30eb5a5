"""A session whose state is in the object store: committed after every change, or now and then.

One call at a time: the results by key in an entry are those whose effect is in its state.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from atoll.concurrency.background import Background
from atoll.errors import AtollError, ConfigError, SandboxLostError, StateError
from atoll.fleet.log import MAX_KEYS, FencedError
from atoll.fleet.settings import KEEP_SECONDS
from atoll.rpc.passed_fds import PassedFds, Reply
from atoll.state.envelope import describe_state

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atoll.fleet.log import Entry, SessionLog
    from atoll.hosting.sessions import HostedSandbox, Session
    from atoll.rpc.connection import Params

    Work = Callable[[], Awaitable[Reply]]

_LOG = logging.getLogger("atoll.fleet")
RENEW_AFTER, GIVE_UP_AFTER = 1 / 8, 1 / 2
"""Shares of the time for which a session without an owner is kept. After the first, an owner that
had nothing to write says that it is there. After the second it writes nothing any more: the session
may have been ended, and its log deleted a while later, which would accept an entry again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedResult:
    """The result of a call with an idempotency key, as an entry of a log keeps it."""

    code: str
    """The digest of the code that ran."""
    value: Any
    beside: list[str]
    """The items beside the reply, in base64."""

    @classmethod
    def of(cls, reply: Reply, code: str) -> KeyedResult:
        """Return a reply as it is kept; its items are used up."""
        items = reply.passed_fds
        beside = [base64.b64encode(items.take_bytes()).decode() for _ in range(len(items))]
        return cls(code=code, value=reply.value, beside=beside)

    def reply(self) -> Reply:
        """Return the reply again."""
        return Reply(self.value, PassedFds(map(base64.b64decode, self.beside)))


class DurableSession:
    """Carries out calls of one session and commits what they leave."""

    def __init__(
        self,
        session: Session,
        log: SessionLog,
        entry: Entry,
        *,
        every_cell: bool,
        keep_log: bool = False,
        keep_seconds: float = KEEP_SECONDS,
    ) -> None:
        self._session, self._log = session, log
        self._every_cell, self._keep_log, self._keep_seconds = every_cell, keep_log, keep_seconds
        self._turn = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._written = _clock()
        self._results: dict[str, KeyedResult] = {}
        """Results of this owner by key."""
        self._fresh: dict[str, KeyedResult] = {}
        """Results that no entry has yet."""
        self._background = Background(_LOG)
        self.entry = entry
        self.dirty_since: float | None = None
        self.fenced = False

    @property
    def save_lag(self) -> float:
        """Seconds since the oldest unsaved change."""
        return 0.0 if self.dirty_since is None else time.monotonic() - self.dirty_since

    async def run(self, params: Params, work: Work) -> Reply:
        """Carry out a call that may change the session.

        With durability `cell`, answer once its effect is in the store.
        """
        key = params.get("key")
        async with self._turn:
            self._require_owned()
            reply = None if key is None else await self._known(key, params)
            if reply is None:
                reply = await self._fresh_call(key, params, work)
            if self._every_cell and self.dirty_since is not None:
                await self._commit(state_lost=_state_lost(reply))
            return reply

    async def commit(self, *, anyway: bool = False) -> None:
        """Write what the store does not have, if there is anything, or `anyway`."""
        async with self._turn:
            if anyway:
                self.dirty_since = time.monotonic()
            if self.dirty_since is not None and not self.fenced:
                await self._commit()

    async def renew(self) -> None:
        """Write that the session has an owner, if nothing else was written for a long time.

        It does not wait for a call that runs: that may take days.
        """
        async with self._writing:
            if _clock() - self._written > self._keep_seconds * RENEW_AFTER and not self.fenced:
                await self._write(self._log.renew)

    async def end(self) -> None:
        """Write that the session has ended, unless another node has it."""
        async with self._turn, self._writing:
            if not self.fenced:
                await self._background.wait()
                await self._log.end(self.entry)
                self.fenced = True

    async def _known(self, key: str, params: Params) -> Reply | None:
        """Return the result of a call with this key that was made before, here or elsewhere."""
        known = self._results.get(key)
        if known is None:
            logged = await self._log.result(self.entry, key)
            if logged is None:
                return None
            known = KeyedResult(**logged)
        if known.code != _digest(params):
            raise ConfigError(f"the key {key!r} was used with other code: use another key for it")
        return known.reply()

    async def _fresh_call(self, key: str | None, params: Params, work: Work) -> Reply:
        if self.dirty_since is None:
            self.dirty_since = time.monotonic()
        reply = await work()
        if key is None:
            return reply
        kept = self._results[key] = self._fresh[key] = KeyedResult.of(reply, _digest(params))
        while len(self._results) > MAX_KEYS:
            self._results.pop(next(iter(self._results)))
        return kept.reply()

    async def _commit(self, *, state_lost: bool = False) -> None:
        since, fresh = self.dirty_since, dict(self._fresh)
        state = None if state_lost else await self._saved()
        left_out = () if state is None else tuple(describe_state(state).left_out)
        async with self._writing:
            await self._write(lambda last: self._log.commit(last, state, fresh, left_out))
        for key in fresh:
            self._fresh.pop(key, None)
        if self.dirty_since == since:
            self.dirty_since = None

    async def _write(self, append: Callable[[Entry], Awaitable[Entry]]) -> None:
        """Append an entry; if another node has the session, give it up with SandboxLostError."""
        old = self.entry
        try:
            self._require_recent()
            self.entry = await append(old)
        except FencedError as exc:
            self.fenced = True
            raise SandboxLostError(str(exc)) from None
        self._written = _clock()
        if not self._keep_log:
            self._background.spawn(self._forget(old))

    async def _saved(self) -> bytes:
        try:
            async with self._session as box:
                return await cast("HostedSandbox", box).save_whole()
        except StateError as exc:
            raise StateError(f"the call was carried out, but not saved: {exc}") from None

    async def _forget(self, old: Entry) -> None:
        try:
            await self._log.forget(old, self.entry)
        except AtollError as exc:
            _LOG.warning("an old state was not deleted: %s", exc)

    def _require_recent(self) -> None:
        if (age := _clock() - self._written) > self._keep_seconds * GIVE_UP_AFTER:
            raise FencedError(f"nothing of the session was written for {age:.0f} s: it may be gone")

    def _require_owned(self) -> None:
        if self.fenced:
            raise SandboxLostError("the session was taken over by another node")


def _clock() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)  # it goes on while the machine sleeps


def _digest(params: Params) -> str:
    code = str(params.get("code"))
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest()


def _state_lost(reply: Reply) -> bool:
    result = reply.value.get("result") if isinstance(reply.value, dict) else None
    return isinstance(result, dict) and result.get("state_lost") is True
