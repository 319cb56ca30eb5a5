"""The sandboxes behind `atoll mcp`: named sessions of each client, their outputs and contexts.

SECURITY: a name is looked up under the connection that made it, so one HTTP session cannot use
another's sandbox. The number of sandboxes, their idle time and their stored output have limits;
above them a call is refused, or the oldest output is deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
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

    Report = Callable[[float, str], Awaitable[None]]
    """Called with a growing number, and the last line of output."""

T = TypeVar("T")
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
        self.used = time.monotonic()

    def hear(self, _stream: str, text: str) -> None:
        """Take a piece of what the sandbox prints."""
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

    def output(self, number: str) -> str:
        """Return a whole stored output; ConfigError if there is none of that number."""
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
    """All sessions of one server, by connection and name."""

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
        self._forking: set[tuple[str, str]] = set()
        """Clones that are being made: they take room, and their names."""
        self._opening = asyncio.Lock()

    async def get(self, connection: str, name: str) -> Session:
        """Return a session; a name that is new to the connection opens a sandbox."""
        key = (connection, _checked(name))
        async with self._opening:
            await self._end_idle()
            if key in self._forking:
                raise ConfigError(f"the session {name!r} is being made: wait for its fork")
            if key not in self._all:
                self._require_room()
                self._all[key] = await self._open(name)
            self._all[key].used = time.monotonic()
            return self._all[key]

    async def fork(self, connection: str, name: str, new: str) -> Session:
        """Clone a session under a new name."""
        source, key = await self.get(connection, name), (connection, _checked(new))
        if key in self._all or key in self._forking:
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

    def names(self, connection: str) -> list[str]:
        """Return the names of a connection's sessions, oldest first."""
        return [name for owner, name in self._all if owner == connection]

    async def close(self, connection: str, name: str) -> None:
        """End a session; ConfigError if there is none of that name."""
        ended = self._all.pop((connection, name), None)
        if ended is None:
            raise ConfigError(f"there is no session {name!r:.70}")
        await ended.close()

    async def sweep(self) -> None:
        """End idle sessions, until cancelled."""
        while True:
            await asyncio.sleep(self._idle / 10)
            async with self._opening:
                await self._end_idle()

    async def close_all(self) -> None:
        """End every sandbox."""
        for key in tuple(self._all):
            await self.close(*key)
        await self._opener.close()

    def open_context(self, connection: str, name: str, text: str) -> ContextIndex:
        """Keep a text for searches under a name; one of the same name is replaced."""
        key = (connection, _checked(name))
        owned = [context for context in self._contexts if context[0] == connection]
        if key not in self._contexts and len(owned) >= MAX_CONTEXTS:
            del self._contexts[owned[0]]
        self._contexts.pop(key, None)  # so that the last key is the one opened last
        self._contexts[key] = Context.from_text(text)
        return ContextIndex.of(self._contexts[key])

    def context(self, connection: str, name: str | None = None) -> ContextIndex:
        """Return an open context: by its name, or the one opened last.

        The context that the server was started with is open as `context`.
        """
        if isinstance(self._given, str):
            self._given = Context.from_text(self._given)
        given = {GIVEN: self._given} if isinstance(self._given, Context) else {}
        owned = {key[1]: context for key, context in self._contexts.items() if key[0] == connection}
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
        if len(self._all) + len(self._forking) >= self._most:
            raise ConfigError(
                f"there are {self._most} sessions already: end one with close_session"
            )

    async def _open(self, name: str) -> Session:
        made = Session(name)
        made.box = await self._opener.open(made.hear)
        return made

    async def _end_idle(self) -> None:
        oldest = time.monotonic() - self._idle
        for key, session in tuple(self._all.items()):
            if session.used < oldest and not session.busy:
                await self.close(*key)


def _checked(name: str) -> str:
    if not _NAME.match(name):
        raise ConfigError(f"a name has 1 to 64 letters, digits, - and _, not {name!r:.70}")
    return name
