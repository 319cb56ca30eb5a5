# SECURITY: a session has one owner because the store refuses a second entry of one number. Nothing
# here may overwrite an entry, or decide by a clock who owns a session. A number that was taken is
# free again only once its session has ended, and every former owner has given it up (`expire`).
"""A session's log in the object store: who owns it, and where its last state is.

sessions/<id>/log/000000000001   open    epoch 1
sessions/<id>/log/000000000002   commit  epoch 1, state sessions/<id>/state/1-2-<nonce>
sessions/<id>/log/000000000003   claim   epoch 2: the first owner can commit nothing any more
sessions/<id>/log/000000000004   end     epoch 2
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atoll.errors import ConfigError, FleetError, SandboxClosedError, SandboxLostError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from atoll.fleet.store import Store

OPEN, CLAIM, COMMIT, END = "open", "claim", "commit", "end"
_KINDS = frozenset({OPEN, CLAIM, COMMIT, END})
_MAX_ENTRIES = 10**12
MAX_KEYS = 256
"""Idempotency keys whose results can be found in a log."""
_DIGITS = 12
_IDENT = re.compile(r"[0-9a-f]{32}\Z")
_STATE = re.compile(r"\d{1,18}-\d{1,18}-[0-9a-f]{16}\Z")


class FencedError(SandboxLostError):
    """Another node has claimed the session: this one may not commit any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry. `written` is for people: nothing is decided by it."""

    number: int
    epoch: int
    kind: str
    owner: str
    nonce: str
    state: str | None = None
    """The object that holds the session's state; None if it has none yet."""
    left_out: tuple[str, ...] = ()
    keys: Mapping[str, int] = field(default_factory=dict)
    """The number of the entry that has the result of an idempotency key."""
    results: Mapping[str, Any] = field(default_factory=dict)
    written: float = 0.0

    def to_bytes(self) -> bytes:
        """Return the entry as JSON."""
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes | str) -> Entry:
        """Return the entry; FleetError if it is damaged."""
        try:
            fields = json.loads(data)
            made = cls(**{**fields, "left_out": tuple(fields["left_out"])})
            made.check()
        except (ValueError, TypeError, LookupError) as exc:
            raise FleetError(f"an entry of a session's log is damaged: {exc!r:.200}") from None
        return made

    def check(self) -> None:
        """Raise ValueError unless the fields have their types: others may have written them."""
        numbers = [self.number, self.epoch, *self.keys.values()]
        texts = [self.kind, self.owner, self.nonce, *self.left_out, *self.keys]
        if not all(type(number) is int and 0 < number < _MAX_ENTRIES for number in numbers):
            raise ValueError("a number is out of range")
        if not all(isinstance(text, str) for text in texts) or self.kind not in _KINDS:
            raise ValueError("a text has another type, or the kind is unknown")
        if not isinstance(self.state, str | None) or not isinstance(self.results, dict):
            raise TypeError("the state or the results have another type")


class SessionLog:
    """The log of one session. One owner appends; any process may read, or claim."""

    def __init__(self, store: Store, ident: str) -> None:
        if not _IDENT.match(ident):
            raise ConfigError(f"a session of a fleet has 32 hexadecimal digits, not {ident!r:.60}")
        self._store, self.ident = store, ident

    async def open(self, owner: str) -> Entry:
        """Write the first entry."""
        first = Entry(number=1, epoch=1, kind=OPEN, owner=owner, nonce=_nonce())
        return await self._append(first)

    async def last(self) -> Entry:
        """Return the newest entry; SandboxClosedError if the session does not exist."""
        names = await self._store.names(self._folder)
        if not names:
            raise SandboxClosedError(f"the fleet has no session {self.ident}")
        return await self._read(names[-1])

    async def entries(self) -> list[Entry]:
        """Return every entry that is kept, oldest first."""
        names = await self._store.names(self._folder)
        return list(await asyncio.gather(*map(self._read, names)))

    async def has_ended(self) -> bool:
        """Return whether the session no longer exists."""
        try:
            return (await self.last()).kind == END
        except SandboxClosedError:
            return True

    async def claim(self, owner: str) -> Entry:
        """Take the session over from its owner; SandboxClosedError if it has ended."""
        while True:
            last = await self.last()
            if last.kind == END:
                raise SandboxClosedError(f"the session {self.ident} has ended")
            claim = _next(last, CLAIM, epoch=last.epoch + 1, owner=owner)
            try:
                return await self._append(claim)
            except FencedError:
                continue  # its owner committed, or another claimed, in between

    async def commit(
        self,
        last: Entry,
        state: bytes | None,
        results: Mapping[str, Any],
        left_out: tuple[str, ...] = (),
    ) -> Entry:
        """Write a state and results by key after `last`; FencedError if the session was claimed."""
        while True:
            entry = _committed(last, results, left_out)
            if state is not None:
                place = f"sessions/{self.ident}/state/{entry.epoch}-{entry.number}-{entry.nonce}"
                entry = dataclasses.replace(entry, state=place)
                await self._store.create(place, state)
            try:
                return await self._append(entry)
            except FencedError:
                if entry.state is not None:
                    await self._store.delete(entry.state)
                last = await self._own_entry(entry.number, last.epoch)

    async def renew(self, last: Entry) -> Entry:
        """Write that the session still has its owner; FencedError if it was claimed."""
        while True:
            entry = _next(last, COMMIT)
            try:
                return await self._append(entry)
            except FencedError:
                last = await self._own_entry(entry.number, last.epoch)

    async def end(self, last: Entry) -> None:
        """Write that it has ended, and delete its states; FencedError if it was claimed."""
        await self._append(_next(last, END, state=None, keys={}))
        await self._delete_states()

    async def expire(self, listed: Iterable[str]) -> None:
        """End a session that is `listed` so, or delete it if it has ended.

        FencedError if it was written to since then. The entry has an epoch of its own: an owner
        that is still there must not take it for one of its commits, and go on after it.
        """
        logged = sorted(name for name in listed if name.startswith(f"{self._folder}/"))
        last = await self._read(logged[-1]) if logged else None
        if last is None or last.kind == END:
            await self._delete_states()
            await self._store.delete(*logged)  # the end goes last: what is left has still ended
            return
        end = _next(last, END, epoch=last.epoch + 1, owner="", state=None, keys={})
        await self._append(end)
        names = await self._store.names(self._folder)
        if names[-1] != self._name(end.number):  # the number was an old commit's (see `forget`)
            raise FencedError(f"the session {self.ident} was written to meanwhile")
        await self._delete_states()

    async def state(self, entry: Entry) -> bytes | None:
        """Return the state that an entry names; FleetError if it is gone."""
        if entry.state is None:
            return None
        result = await self._store.get(self._own(entry.state))
        if result is None:
            raise FleetError(f"the store has lost the state {entry.state}")
        return result

    async def result(self, entry: Entry, key: str) -> Any:
        """Return what an idempotency key's call returned, if the log up to `entry` has it."""
        number = entry.keys.get(key)
        if number is None:
            return None
        result = entry if number == entry.number else await self._read(self._name(number))
        return result.results.get(key)

    async def forget(self, old: Entry, last: Entry) -> None:
        """Delete a commit that `last` replaces: its state, and its entry if no key needs it.

        Its number is not free then: a node that takes it would have to own an epoch that has
        claimed the session, and entries of claims are never deleted.
        """
        gone = []
        if old.state is not None and old.state != last.state:
            gone.append(self._own(old.state))
        if old.kind == COMMIT and old.number not in last.keys.values():
            gone.append(self._name(old.number))
        await self._store.delete(*gone)

    def _own(self, state: str) -> str:
        """Return the name of a state. SECURITY: FleetError if it is not one of this session's."""
        folder, _, name = state.rpartition("/")
        if folder != f"sessions/{self.ident}/state" or not _STATE.match(name):
            raise FleetError(f"{state[:200]!r} is not a state of the session {self.ident}")
        return state

    async def _delete_states(self) -> None:
        names = await self._store.names(f"sessions/{self.ident}/state")
        await self._store.delete(*names)

    async def _own_entry(self, number: int, epoch: int) -> Entry:
        """Re-read our own append after an ambiguous failure; FencedError if it is another's."""
        result = await self._read(self._name(number))
        if result.epoch != epoch or result.kind == END:
            raise _fenced(self.ident, number)
        return result

    async def _append(self, entry: Entry) -> Entry:
        """Write an entry; FencedError if its number is another's."""
        entry = dataclasses.replace(entry, written=time.time())
        name = self._name(entry.number)
        if await self._store.create(name, entry.to_bytes()):
            return entry
        if (await self._read(name)).nonce == entry.nonce:
            return entry  # a request of ours that was repeated on the way
        raise _fenced(self.ident, entry.number)

    async def _read(self, name: str) -> Entry:
        data = await self._store.get(name)
        if data is None:
            raise FleetError(f"the store has lost {name}")
        return Entry.from_bytes(data)

    @property
    def _folder(self) -> str:
        return f"sessions/{self.ident}/log"

    def _name(self, number: int) -> str:
        return f"{self._folder}/{number:0{_DIGITS}d}"


def _fenced(ident: str, number: int) -> FencedError:
    return FencedError(f"the session {ident} was taken over: entry {number} exists")


def _committed(last: Entry, results: Mapping[str, Any], left_out: tuple[str, ...]) -> Entry:
    keys = {**last.keys, **dict.fromkeys(results, last.number + 1)}
    keys = dict(list(keys.items())[-MAX_KEYS:])
    fields = {"keys": keys, "results": results, "left_out": left_out, "state": None}
    return _next(last, COMMIT, **fields)


def _next(last: Entry, kind: str, **fields: Any) -> Entry:
    blank: dict[str, Any] = {"results": {}, "nonce": _nonce()}
    return dataclasses.replace(last, number=last.number + 1, kind=kind, **{**blank, **fields})


def _nonce() -> str:
    return secrets.token_hex(8)
