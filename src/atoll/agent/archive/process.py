"""The host side of a process for hostile input: starts it with limits, and kills it if it is late.

SECURITY: the host treats its answers as data of a limited length, and nothing else.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from atoll.agent.archive.confined import FRAME
from atoll.concurrency import forks
from atoll.concurrency.piped_child import PipedChild
from atoll.errors import ArchiveError, ArchiveLimitError, ConfigError
from atoll.policy import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.agent.archive.confined import Reply
    from atoll.concurrency.piped_child import Left

_BOOT = (
    "import sys; from importlib import import_module; sys.path[:] = sys.argv[4:]; "
    "import_module(sys.argv[1]).main()"
)
_KEPT = ("LD_LIBRARY_PATH",)
_MAX_HEADER = 64 * MIB
_MAX_REQUEST = 60_000
"""Bytes of a request without its payload."""
_START_SECONDS = 30.0
"""Least seconds for a process to start on a busy machine; it has not read the input yet."""
_GRACE_SECONDS = 2.0
"""Seconds after the timeout until the process is killed; it should report the timeout itself."""


class Process:
    """A child process that runs a module; one request at a time, from any thread."""

    def __init__(self, module: str, *, memory: int, seconds: float, most: int) -> None:
        """`most` is the number of bytes that an answer may have."""
        self._module, self._memory, self._seconds, self._most = module, memory, seconds, most
        self._lock = forks.new_lock()
        self._child: PipedChild | None = None
        self._closed = threading.Event()
        self.confined = False
        """Whether the process is confined: see `start`."""

    @property
    def running(self) -> bool:
        """Whether there is a process, which keeps the state of earlier requests."""
        return self._child is not None

    @property
    def pid(self) -> int | None:
        """The process id, while there is one."""
        child = self._child
        return child.pid if child else None

    def start(self, fds: tuple[int, ...] = (), **facts: object) -> None:
        """Start a process; it imports what it needs for these `facts`, and is then confined.

        It inherits the descriptors, with the same numbers. ArchiveError if a library is missing.
        """
        if self._closed.is_set():
            raise ArchiveError("the archive is closed")
        arguments = [self._module, str(self._memory), str(self._seconds), *_search_path()]
        self._child = PipedChild(
            [sys.executable, "-I", "-S", "-B", "-c", _BOOT, *arguments],
            env={name: os.environ[name] for name in _KEPT if name in os.environ},
            fds=fds,
        )
        if self._closed.is_set():  # closed by another thread, which may not have seen the child yet
            self._end()
            raise ArchiveError("the archive is closed")
        try:
            # the process has not read the input yet, so this error is not the input's
            self.confined = self.ask("prepare", **facts)[0]["confined"] is True
        except BaseException:
            with self._lock:
                self._end()
            raise

    def ask(self, operation: str, payload: bytes = b"", /, **request: object) -> Reply:
        """Return the answer; ArchiveError if the input is damaged, or crashed the process."""
        seconds = max(self._seconds, _START_SECONDS) if operation == "prepare" else self._seconds
        until = time.monotonic() + seconds + _GRACE_SECONDS

        def left() -> float:
            return until - time.monotonic()

        with self._lock:
            if self._child is None:
                raise ArchiveError("the archive is closed")
            child = self._child
            try:
                with suppress(BrokenPipeError):  # reading the answer reports how it ended
                    child.send(_framed({"operation": operation, **request}, payload), left)
                header, rest = self._receive(child, left)
            except TimeoutError:
                self._end()
                raise self._late() from None
            except EOFError:
                fault = self._ended(child)
                self._end()
                raise fault from None
            except BaseException:
                self._end()
                raise
        _raise(header, self._memory)
        return header, rest

    def close(self) -> None:
        """Kill the process, also during a request of another thread."""
        self._closed.set()
        child = self._child
        if child is not None:
            child.kill()
        with self._lock:
            self._end()

    def _receive(self, child: PipedChild, left: Left) -> Reply:
        size, rest = FRAME.unpack(child.receive(FRAME.size, left))
        if size > _MAX_HEADER or rest > self._most:
            raise ArchiveError(f"an answer of {size + rest} bytes is over the limit")
        header = _parsed(child.receive(size, left))
        return header, child.receive(rest, left)

    def _ended(self, child: PipedChild) -> ArchiveError:
        if self._closed.is_set():
            return ArchiveError("the archive was closed meanwhile")
        code = child.exit_code(_GRACE_SECONDS)
        if code == -signal.SIGXCPU:
            return self._late()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        text = f"it crashed its reader ({how}): it is damaged, or needs more than"
        return ArchiveError(f"{text} max_memory_bytes={self._memory}")

    def _late(self) -> ArchiveError:
        return ArchiveLimitError("max_seconds", most=self._seconds, what="the time in seconds")

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()


def _search_path() -> list[str]:
    return [os.path.abspath(place) for place in sys.path if place]


def _framed(request: Mapping[str, object], payload: bytes) -> bytes:
    text = json.dumps(request).encode()
    if len(text) > _MAX_REQUEST:
        raise ConfigError(f"the name or query is too long: {len(text)} of {_MAX_REQUEST} bytes")
    return FRAME.pack(len(text), len(payload)) + text + payload


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise ArchiveError("the archive reader sent a malformed answer")
    return header


def _raise(header: Mapping[str, Any], memory: int) -> None:
    fault = header.get("fault")
    if fault == "limit":
        facts = {name: header.get(name) for name in ("value", "most", "what")}
        raise ArchiveLimitError(str(header.get("limit")), **facts)  # type: ignore[arg-type]
    if fault == "memory":
        raise ArchiveLimitError("max_memory_bytes", most=memory, what="what it needs")
    if fault == "config":
        raise ConfigError(str(header.get("text")))
    if fault:
        raise ArchiveError(str(header.get("text")))
