"""One session: a sandbox that is saved to disk when it is idle, and restored on the next call."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from atoll.concurrency.shares import Waiter
from atoll.errors import (
    SandboxClosedError,
    SandboxError,
    SandboxLostError,
    StateError,
    StateTooLargeError,
    UnsupportedError,
)
from atoll.policy import Capability
from atoll.sandbox import verbs
from atoll.sandbox.context import Context
from atoll.sandbox.idempotency import KeyedResults
from atoll.state.envelope import describe_state
from atoll.state.store import SqliteStateStore

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.config import SandboxConfig
    from atoll.hosting.client_callbacks import ClientCallbacks
    from atoll.hosting.limits import DaemonLimits
    from atoll.network import NetworkPolicy
    from atoll.sandbox.base import BaseSandbox
    from atoll.state.store import StateStore

Opener = Callable[["SandboxConfig"], Awaitable["BaseSandbox"]]
LeftOut = Callable[[bytes], Collection[str]]
R = TypeVar("R")
T = TypeVar("T")
_LOG = logging.getLogger("atoll.daemon")


class HostedSandbox(Protocol):
    """The methods of a sandbox that only its host calls; each backend has some of them."""

    async def folders(self, changing: bool) -> dict[str, int]:  # noqa: FBT001 - as it is called
        """Return descriptors of its folders by name; `changing`: to write."""
        ...

    async def freeze(self) -> None:
        """Stop every process of the guest."""

    async def thaw(self) -> None:
        """Continue the processes of the guest."""

    async def detach(self) -> None:
        """Disconnect from a sandbox that goes on without this process."""

    async def fork_with(self, config: SandboxConfig) -> BaseSandbox:
        """Return a live clone that calls the functions in `config`."""
        ...

    async def save_whole(self) -> bytes:
        """Return a state from which the session can go on as if it had never ended."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Where idle sessions are saved, and how to find out what a saved state does not hold."""

    store: StateStore
    left_out: LeftOut = lambda _blob: ()


def open_storage(
    path: Path, limits: DaemonLimits, now: Callable[[], float] = time.time, *, fresh: bool = True
) -> tuple[Storage, SqliteStateStore]:
    """Open a file for idle sessions; `fresh`: delete the file of a killed process first.

    A full store refuses a session, which then stays in memory: dropping the oldest would end the
    sessions of other clients.
    """
    for suffix in ("", "-wal", "-shm") if fresh else ():
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    keep, most = limits.keep_seconds, limits.store_bytes
    store = SqliteStateStore(path, keep, most, now, drop_oldest=False)
    return Storage(store=store, left_out=lambda blob: describe_state(blob).left_out), store


class EndedAs(enum.Enum):
    """How a session came to its end, for the error that later calls raise."""

    CLOSED = enum.auto()
    """Its client ended it."""
    LOST = enum.auto()
    """It was unused for too long, or its state is gone."""
    MOVED = enum.auto()
    """It goes on elsewhere."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ending:
    """The end of a session, and the reason that later calls give."""

    how: EndedAs
    why: str

    def error(self) -> SandboxError:
        """Return the error of a call that comes too late."""
        if self.how is EndedAs.CLOSED:
            return SandboxClosedError(self.why)
        moved = self.how is EndedAs.MOVED
        advice = "Try again" if moved else "Open a new one"
        return SandboxLostError(f"the session is lost: {self.why}. {advice}.", retryable=moved)


class Session:
    """A sandbox, and what the daemon knows of it. Calls of one session run one after the other."""

    def __init__(
        self,
        ident: str,
        config: SandboxConfig,
        callbacks: ClientCallbacks,
        opener: Opener,
        storage: Storage,
    ) -> None:
        self.ident, self.config, self.callbacks = ident, _counted(config), callbacks
        self._opener, self._storage = opener, storage
        self._turn = asyncio.Lock()
        self._users = 0
        self._marks = False
        self._unsavable = ""
        """Why it could not be saved since its last call."""
        self._ending: Ending | None = None
        self.frozen = False
        """Whether it was paused: its guest is there, and does not run."""
        self.box: BaseSandbox | None = None
        self.by_key = KeyedResults()
        self.waiter = Waiter()
        self.used = self._refused = time.monotonic()
        self.memory = 0
        self.digest: bytes | None = None
        """Of the token that leads to it, if it is to outlive its connection."""

    @property
    def idle(self) -> bool:
        """Whether nothing runs in it, or waits to."""
        return self._users == 0

    @property
    def live(self) -> bool:
        """Whether it takes memory."""
        return self.box is not None

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._ending is not None

    @property
    def quiet_since(self) -> float:
        """When it was last used, or was last refused by the store."""
        return max(self.used, self._refused)

    @property
    def unsavable(self) -> str:
        """Why it cannot be saved without loss, as far as is known; empty if it can."""
        if self.box is not None and Capability.SAVE not in self.box.capabilities:
            return f"backend {self.box.backend!r} saves no sessions"
        if getattr(self.box, "any_process_runs", False):
            return "a process runs beside its cells"
        return "its checkpoints cannot be saved" if self._marks else self._unsavable

    async def __aenter__(self) -> BaseSandbox:
        """Wait for a turn, as calls run one after the other; restore what was saved to disk."""
        self._users += 1
        try:
            await self._turn.acquire()
        except BaseException:
            self._unused()
            raise
        box = self.box
        if box is not None and not self.frozen and self._ending is None:
            self._unsavable = ""  # this call may delete what could not be saved
            return box
        try:
            self._require_open()
            self._unsavable = ""
            return await self._revive()
        except BaseException:
            await self.__aexit__()
            raise

    async def __aexit__(self, *_exc: object) -> None:
        self._turn.release()
        self._users -= 1
        self.used = time.monotonic()

    def _unused(self) -> None:
        self._users -= 1
        self.used = time.monotonic()

    async def folders(self, *, changing: bool) -> dict[str, int]:
        """Return descriptors of the guest's folders, at once; the caller closes them."""
        return await self.at_once(lambda box: _folders(box, changing=changing))

    async def at_once(self, use: Callable[[BaseSandbox], Awaitable[T]]) -> T:
        """Use the sandbox beside the call that runs; restore it if none runs and it was saved."""
        box = self.box
        if box is None or self.idle:
            async with self as box:
                return await use(box)
        return await use(box)

    async def start(self, box: BaseSandbox | None = None) -> BaseSandbox:
        """Open the sandbox, or take one over that is open."""
        self.box = box or await self._opener(self.config)
        if self.config.state is not None:  # it need not be held twice
            self.config = dataclasses.replace(self.config, state=None)
        return self.box

    async def restart(self, config: SandboxConfig) -> BaseSandbox:
        """Throw the state away and start afresh, with the context in `config`."""
        self._users += 1
        try:
            async with self._turn:
                self._require_open()
                self.config, self.frozen = _counted(config, self.config.network), False
                if self.box is None:
                    await asyncio.to_thread(self._storage.store.delete, self.ident)
                    await self.start()
                else:
                    await self.box.initialize(config.context)
                self._marks, self._unsavable = False, ""
                assert self.box is not None
                return self.box
        finally:
            self._unused()

    def clone_config(self) -> tuple[ClientCallbacks, SandboxConfig]:
        """Return callbacks and configuration of a live clone; it shares the network's limits."""
        callbacks, functions = self.callbacks.twin()
        config = dataclasses.replace(self.config, **functions)
        if isinstance(config.context, Context):
            config = dataclasses.replace(config, context=config.context.dup())
        return callbacks, _counted(config, self.config.network)

    async def carry_out(self, request: verbs.Request[R]) -> R:
        """Carry out a request that runs no code."""
        result: Any = None
        asked: verbs.Request[Any] = request
        match asked:
            case verbs.PortRequest():
                result = await self.at_once(asked.apply)
            case verbs.SandboxRequest():
                async with self as box:
                    result = await asked.apply(box)
                    self._marks |= isinstance(asked, verbs.Checkpoint)
            case verbs.ProcessRequest():
                result = await self._ask_process(asked)
            case verbs.Cancel():
                await self.cancel()
            case verbs.Folders(changing=changing):
                result = await self.folders(changing=changing)
            case verbs.SetTools(tools=tools):
                await self._set_tools(tools)
            case verbs.Pause():
                await self.pause()
            case _:
                raise SandboxError(f"a session here cannot be asked to {request.verb!r}")
        return cast("R", result)

    async def _ask_process(self, request: verbs.ProcessRequest[R]) -> R:
        """Ask about processes at once, also while a cell runs; only `start` wakes the session."""
        wakes = isinstance(request, verbs.Start) and (self.box is None or self.frozen)
        if self.box is None or wakes:
            async with self:
                pass
        self._require_open()
        assert self.box is not None
        self.used = time.monotonic()
        return await request.apply(self.box)

    async def _set_tools(self, described: list[Any]) -> None:
        """Offer the tools that the client describes, and no others."""
        async with self as box:
            data = {"tools": described}
            tools = self.callbacks.tools(data)
            self.config = dataclasses.replace(self.config, tools=tools)
            self.callbacks.keep_tools(data)
            await box.set_tools(tools)

    async def cancel(self) -> None:
        """Interrupt what runs; what waits for its turn will not run."""
        self.waiter.cancel()
        if self.box is not None:
            await self.box.cancel()

    async def pause(self) -> None:
        """Freeze the guest after the call that runs; the next call thaws it."""
        async with self as box:
            freeze = getattr(box, "freeze", None)
            if freeze is None:
                raise UnsupportedError(box.backend, "freeze a session")
            await freeze()
            self.frozen = True

    async def hibernate(self) -> bool:
        """Save the session to disk and end its guest; return False if it stays in memory.

        If it cannot be saved without loss, `unsavable` says why until the next call. If the store
        has no room for it now, the session stays as it is, and can be tried again.
        """
        if not (self.live and self.idle) or self.frozen or self.unsavable or self._turn.locked():
            return False
        async with self._turn:
            try:
                blob = await self._save_whole()
            except SandboxError as exc:  # what the guest says does not keep it in memory for ever
                self._unsavable = str(exc)
                return False
            try:
                await self._move_to_store(blob)
            except StateTooLargeError as exc:
                self._unsavable = str(exc)
                return False
            except StateError as exc:  # no room, or no disk: that may pass
                _LOG.warning("a session stays in memory: %s", exc)
                self._refused = time.monotonic()
                return False
            return True

    async def save_to_disk(self) -> None:
        """Save the session to disk after the call that runs, and end its guest.

        Checkpoints are lost. SandboxError says why a part of the session's state would be lost;
        then it stays as it is.
        """
        self._users += 1
        try:
            async with self._turn:
                self._require_open()
                if self.box is not None:
                    await self._revive()  # a frozen guest answers nothing
                    await self._move_to_store(await self._save_whole())
        finally:
            self._users -= 1

    async def _save_whole(self) -> bytes:
        """Return the whole state; SandboxError if a part of it would be lost."""
        box = self.box
        assert box is not None
        if Capability.SAVE not in box.capabilities:
            raise UnsupportedError(box.backend, "save a session")
        blob = await cast("HostedSandbox", box).save_whole()
        if left_out := sorted(self._storage.left_out(blob)):
            names = ", ".join(left_out)[:200]
            raise SandboxError(f"it could not be saved because of {names}")
        return blob

    async def _move_to_store(self, blob: bytes) -> None:
        """Store the state, then end the guest; StateError if the store does not take it."""
        await asyncio.to_thread(self._storage.store.put, self.ident, blob)
        box, self.box, self.memory = self.box, None, 0
        if box is not None:
            await box.destroy()
        if self.over:  # it was ended meanwhile
            await asyncio.to_thread(self._storage.store.delete, self.ident)

    async def end(self, why: str = "the sandbox has been destroyed") -> None:
        """End the guest and delete the saved state; later calls raise, and say why."""
        await self._end(Ending(EndedAs.CLOSED, why))

    async def _end(self, ending: Ending) -> None:
        if self.over:
            return
        self._ending = ending
        self.waiter.cancel()
        box, self.box = self.box, None
        if box is not None:
            await box.destroy()
        else:
            await asyncio.to_thread(self._storage.store.delete, self.ident)

    async def leave(self, why: str) -> None:
        """Part from a sandbox that others can take over; later calls raise SandboxLostError."""
        self._ending = Ending(EndedAs.MOVED, why)
        self.waiter.cancel()
        box, self.box = self.box, None
        if box is not None:
            await cast("HostedSandbox", box).detach()

    async def expire(self, why: str) -> None:
        """End a session that was not used; later calls raise SandboxLostError."""
        await self._end(Ending(EndedAs.LOST, why))

    async def _revive(self) -> BaseSandbox:
        if self.box is not None:
            if self.frozen:
                self.frozen = False
                await cast("HostedSandbox", self.box).thaw()
            return self.box
        blob = await asyncio.to_thread(self._storage.store.get, self.ident)
        if blob is None:
            await self.expire("its saved state was kept for too long")
            self._require_open()
        box = await self._opener(dataclasses.replace(self.config, state=blob))
        if self.over:
            await box.destroy()
            self._require_open()
        self.box = box
        await asyncio.to_thread(self._storage.store.delete, self.ident)
        return box

    def _require_open(self) -> None:
        if self._ending is not None:
            raise self._ending.error()


def _counted(config: SandboxConfig, shared: NetworkPolicy | None = None) -> SandboxConfig:
    """Return the configuration with counters that stay when the session is saved and restored."""
    network = config.network
    if network is None or network.spent is not None:
        return config
    spent = shared.spent if shared is not None else None
    return dataclasses.replace(config, network=network.counted(spent))


async def _folders(box: BaseSandbox, *, changing: bool) -> dict[str, int]:
    if Capability.WORKSPACE not in box.capabilities:
        raise UnsupportedError(box.backend, Capability.WORKSPACE)
    if not hasattr(box, "folders"):  # they are on another machine
        raise UnsupportedError(box.backend, "share its folders with this machine")
    return await cast("HostedSandbox", box).folders(changing)
