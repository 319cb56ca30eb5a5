"""The sandboxes behind `atoll mcp`: sessions of each client, their outputs and contexts.

SECURITY: a session is looked up under its owner: the connection that opened it, or the token where
the protocol has no connections. There the server chooses the handle, which cannot be guessed. The
number of sandboxes, their idle time and their stored output have limits; above them a call is
refused, or the oldest output is deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from atoll.errors import ConfigError
from atoll.integrations.opening import Opener
from atoll.sandbox.context import Context
from atoll.search.index import ContextIndex
from atoll.text.spill import SpillStore
from atoll.text.summary import head_and_tail

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from atoll.config import SandboxConfig
    from atoll.sandbox.base import BaseSandbox
    from atoll.sandbox.process import Process

    Report = Callable[[float, str], Awaitable[None]]
    """Called with a growing number, and the last line of output."""

T = TypeVar("T")
MAIN = "main"
"""The session of a connection's calls that name none."""
MAX_SESSIONS = 16
IDLE_SECONDS = 1800.0
MAX_CONTEXTS = 16
SHOWN_CHARACTERS = 8192
"""Characters of an output in a tool result; the whole output is a resource."""
KEPT_BYTES = 64 << 20
"""Bytes of outputs that one session keeps; the oldest are deleted first."""
GIVEN = "context"
"""The name of the context that the server was started with."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose a session is."""

    name: str
    connected: bool
    """Whether it is one connection, which may choose names; otherwise a token, whose clients
    know sessions by the handles that they got."""


class Progress:
    """Reports the last line of a running call's output to the client, whenever it changes."""

    def __init__(self, report: Report | None) -> None:
        self._report, self._heard = report, 0
        self._line = self._shown = ""
        self._news = asyncio.Event()

    def hear(self, text: str) -> None:
        """Take a piece of output."""
        self._heard += len(text)
        lines = (self._line + text)[-4000:].splitlines()
        self._line = "" if text.endswith("\n") or not lines else lines[-1]
        self._shown = next((line for line in reversed(lines) if line.strip()), "")[-200:]
        self._news.set()

    async def report(self) -> None:
        """Report until cancelled; several changes at once are one report."""
        while self._report is not None:
            await self._news.wait()
            self._news.clear()
            await self._report(self._heard, self._shown)


class Session:
    """One sandbox, which runs one call at a time, and the outputs of its calls."""

    box: BaseSandbox

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock, self._progress = asyncio.Lock(), Progress(None)
        self._outputs, self._count = SpillStore(None, name, KEPT_BYTES), 0
        self.files: dict[str, str] | None = None
        """Size and time of each file by its path, as a client last heard of them."""
        self.processes: dict[str, Process] = {}
        """Processes that a client started, each with the place up to which it has read."""
        self.used = time.monotonic()

    def hear(self, _stream: str, text: str) -> None:
        """Take a piece of the sandbox's output."""
        self._progress.hear(text)

    @property
    def busy(self) -> bool:
        """Whether a call runs."""
        return self._lock.locked()

    async def run(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        report: Report | None = None,
    ) -> T:
        """Await work on the sandbox. Cancelling the caller interrupts it; variables stay.

        The work is a task of its own: the SDK cancels a handler repeatedly until it ends, which
        would cancel the interrupt itself.
        """
        task = asyncio.ensure_future(self._alone(work, report))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.cancel()
            raise

    async def _alone(self, work: Callable[[], Coroutine[Any, Any, T]], report: Report | None) -> T:
        async with self._lock:
            self._progress = Progress(report)
            reporting = asyncio.ensure_future(self._progress.report())
            try:
                return await work()
            finally:
                reporting.cancel()
                self.used = time.monotonic()

    def shorten(self, text: str) -> tuple[str, str | None]:
        """Return the text to show of an output, and the number under which a long one is kept."""
        if len(text) <= SHOWN_CHARACTERS:
            return text, None
        self._count += 1
        number = str(self._count)
        shown = head_and_tail(text, SHOWN_CHARACTERS)
        with contextlib.suppress(OSError):  # a full disk: the model has the short form
            self._outputs.keep(f"{number}.txt", text)
            return shown, number
        return shown, None

    def outputs(self) -> list[str]:
        """Return the numbers of the outputs that are kept."""
        return [name.removesuffix(".txt") for name in self._outputs.paths()]

    def output(self, number: str) -> str:
        """Return a whole stored output; ConfigError if none has this number."""
        path = self._outputs.paths().get(f"{number}.txt")
        if path is None:
            raise ConfigError(
                f"there is no output {number!r:.40}: it is too old, or was never kept"
            )
        return path.read_text(encoding="utf-8")

    async def close(self) -> None:
        """End the sandbox and delete what was kept."""
        self._outputs.close()
        await self.box.destroy()


class Sessions:
    """All sessions of one server, by owner and name."""

    def __init__(
        self,
        config: SandboxConfig,
        *,
        most: int = MAX_SESSIONS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._opener, self._given = Opener(config), config.context
        self._most, self._idle = most, idle_seconds
        self._all: dict[tuple[str, str], Session] = {}
        self._contexts: dict[tuple[str, str], Context] = {}
        self._opening: dict[tuple[str, str], asyncio.Task[Session]] = {}
        self._forking: set[tuple[str, str]] = set()
        """Clones that are being made: they take room, and their names."""

    async def open(self, owner: Owner) -> Session:
        """Open a sandbox under a new handle."""
        await self._end_idle()
        return await self._open((owner.name, _handle()))

    async def get(self, owner: Owner, name: str | None = None) -> Session:
        """Return a session.

        Without a name: the main one of a connection, or a new one. A name that is new to a
        connection opens a sandbox.
        """
        if name is None and not owner.connected:
            return await self.open(owner)
        name = _checked(MAIN if name is None else name)
        key = (owner.name, name)
        await self._end_idle()
        if key in self._forking:
            raise ConfigError(f"the session {name!r} is being made: wait for its fork")
        session = self._all.get(key)
        if session is None:
            if not owner.connected:
                raise ConfigError(
                    f"there is no session {name!r}: open one with open_session, "
                    "and pass the handle that it returns"
                )
            session = await self._open(key)
        session.used = time.monotonic()
        return session

    async def fork(self, owner: Owner, name: str | None, new: str | None = None) -> Session:
        """Clone a session under a new name, which only a connection may choose."""
        if new is not None and not owner.connected:
            raise ConfigError("leave out `new`: this server chooses the handle, and returns it")
        source = await self.get(owner, name)
        new = _handle() if new is None else _checked(new)
        key = (owner.name, new)
        if key in self._all or key in self._forking or key in self._opening:
            raise ConfigError(f"there is a session {new!r} already: choose another name")
        self._require_room()
        made = Session(new)
        self._forking.add(key)
        try:  # it waits for the call that runs: other connections need not wait with it
            made.box = await source.run(lambda: self._opener.fork(source.box, made.hear))
        finally:
            self._forking.discard(key)
        self._all[key] = made
        return made

    def default(self, owner: Owner) -> str:
        """Return the session that is meant without a name; ConfigError if one has to be named."""
        if not owner.connected:
            raise ConfigError("name the session: pass the handle that open_session returned")
        return MAIN

    def of(self, owner: Owner) -> list[Session]:
        """Return an owner's sessions, oldest first."""
        return [session for key, session in self._all.items() if key[0] == owner.name]

    async def close(self, owner: Owner, name: str) -> None:
        """End a session; ConfigError if none has this name."""
        await self._close((owner.name, name))

    async def sweep(self) -> None:
        """End idle sessions, until cancelled."""
        while True:
            await asyncio.sleep(self._idle / 10)
            await self._end_idle()

    async def close_all(self) -> None:
        """End every sandbox."""
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        for key in tuple(self._all):
            await self._close(key)
        await self._opener.close()

    def open_context(self, owner: Owner, name: str, text: str) -> ContextIndex:
        """Keep a text for searches under a name; one of the same name is replaced."""
        key = (owner.name, _checked(name))
        owned = [context for context in self._contexts if context[0] == owner.name]
        if key not in self._contexts and len(owned) >= MAX_CONTEXTS:
            del self._contexts[owned[0]]
        self._contexts.pop(key, None)  # so that the last key is the one opened last
        self._contexts[key] = Context.from_text(text)
        return ContextIndex.of(self._contexts[key])

    def context(self, owner: Owner, name: str | None = None) -> ContextIndex:
        """Return an open context: by its name, or the one opened last.

        The context that the server was started with is open as `context`.
        """
        if isinstance(self._given, str):
            self._given = Context.from_text(self._given)
        given = {GIVEN: self._given} if isinstance(self._given, Context) else {}
        owned = {key[1]: context for key, context in self._contexts.items() if key[0] == owner.name}
        contexts = given | owned
        if not contexts:
            raise ConfigError("no text is open: open one with context_open")
        wanted = next(reversed(owned or given)) if name is None else name
        if wanted not in contexts:
            raise ConfigError(
                f"there is no context {wanted!r:.70}: use one of {', '.join(contexts)}, "
                "or open one with context_open"
            )
        return ContextIndex.of(contexts[wanted])

    def _require_room(self) -> None:
        if len(self._all) + len(self._opening) + len(self._forking) >= self._most:
            raise ConfigError(
                f"there are {self._most} sessions already: end one with close_session"
            )

    async def _open(self, key: tuple[str, str]) -> Session:
        """Open a sandbox; calls that need the same one wait for it, others do not."""
        opening = self._opening.get(key)
        if opening is None:
            self._require_room()
            opening = self._opening[key] = asyncio.ensure_future(self._opened(key))
        return await asyncio.shield(opening)

    async def _opened(self, key: tuple[str, str]) -> Session:
        made = Session(key[1])
        try:
            made.box = await self._opener.open(made.hear)
            self._all[key] = made
        finally:
            del self._opening[key]
        return made

    async def _close(self, key: tuple[str, str]) -> None:
        ended = self._all.pop(key, None)
        if ended is None:
            raise ConfigError(f"there is no session {key[1]!r:.70}")
        await ended.close()

    async def _end_idle(self) -> None:
        oldest = time.monotonic() - self._idle
        for key, session in tuple(self._all.items()):
            if key in self._all and session.used < oldest and not session.busy:
                await self._close(key)


def _handle() -> str:
    return f"s-{secrets.token_hex(8)}"


def _checked(name: str) -> str:
    if not _NAME.match(name):
        raise ConfigError(f"a name has 1 to 64 letters, digits, - and _, not {name!r:.70}")
    return name
