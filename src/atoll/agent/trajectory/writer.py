"""Writes a run's events to a file of JSON lines, to memory, and to a listener.

A line is one write() to a file that is opened for appending, so a crash leaves at most the last
line incomplete. A full disk does not end the run: lost events are counted, and reported once.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import logging
import os
import secrets
import stat
import time
from collections import deque
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

from atoll.agent.trajectory.codec import to_dict
from atoll.concurrency import forks
from atoll.errors import ConfigError
from atoll.log import LogEvent, to_stdlib

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.agent.trajectory.events import Event

MEMORY_CAP = 32 << 20
"""Bytes of events that are kept in memory; the oldest are dropped first."""


class TrajectoryWriter:
    """Writes the events of one run; any thread or task may emit. Path None: memory only."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        on_event: Callable[[Event], None] | None = None,
        memory_cap: int = MEMORY_CAP,
    ) -> None:
        self.run = secrets.token_hex(4)
        self.lost = 0
        """Number of events that could not be written to the file."""
        self._lock, self._begun = forks.new_lock(), time.monotonic()
        self._ids, self._calls = itertools.count(1), itertools.count(1)
        self._kept: deque[tuple[int, Event]] = deque()
        self._bytes, self._cap = 0, memory_cap
        self._on_event = on_event
        self._path = path
        self._fd: int | None = None
        self._torn = False
        if path is not None:
            self._fd, self._torn = _open(path)

    def emit(self, event: Event) -> Event:
        """Write an event; return it with its id, run, time and elapsed filled in."""
        with self._lock:
            event = self._stamped(event)
            line = json.dumps(to_dict(event), separators=(",", ":")).encode() + b"\n"
            self._keep(event, len(line))
            failure = self._write(line)
        if failure is not None:
            _tell("trajectory_not_written", path=os.fspath(self._path or ""), reason=str(failure))
        self._call(event)
        return event

    def new_call(self) -> str:
        """Return a new id for a call, unique in this run."""
        return f"c{next(self._calls)}"

    @property
    def events(self) -> tuple[Event, ...]:
        """Return the events that are still in memory."""
        with self._lock:
            return tuple(event for _, event in self._kept)

    def close(self) -> None:
        """Close the file; later events are kept in memory only."""
        with self._lock:
            if self._fd is not None:
                os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _stamped(self, event: Event) -> Event:
        return replace(
            event,
            id=event.id or f"e{next(self._ids)}",
            run=event.run or self.run,
            at=event.at or datetime.now(UTC).isoformat(timespec="milliseconds"),
            elapsed_ms=event.elapsed_ms or round((time.monotonic() - self._begun) * 1000, 3),
        )

    def _keep(self, event: Event, size: int) -> None:
        self._kept.append((size, event))
        self._bytes += size
        while self._bytes > self._cap and len(self._kept) > 1:
            self._bytes -= self._kept.popleft()[0]

    def _write(self, line: bytes) -> OSError | None:
        """Append a line; return the reason of the first failure."""
        if self._fd is None:
            return None
        whole = b"\n" + line if self._torn else line  # ends an incomplete line
        try:
            written = os.write(self._fd, whole)
        except OSError as exc:
            return self._failed(exc)
        self._torn = (self._torn and not written) or 0 < written < len(whole)
        return self._failed(OSError(errno.ENOSPC, "no room")) if written < len(whole) else None

    def _failed(self, reason: OSError) -> OSError | None:
        self.lost += 1
        return reason if self.lost == 1 else None

    def _call(self, event: Event) -> None:
        """Call the listener without the lock: it may be slow, or emit events itself."""
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception as exc:  # noqa: BLE001 - a listener's fault is not the run's
            self._on_event = None
            _tell("trajectory_listener_failed", reason=f"{type(exc).__name__}: {exc}")


def _open(path: str | os.PathLike[str]) -> tuple[int, bool]:
    """Open the file with mode 0600; return it, and whether its last line is incomplete."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
    try:
        fd = os.open(path, flags, 0o600)
    except OSError as exc:
        raise ConfigError(f"cannot write the record {os.fspath(path)!r}: {exc.strerror}") from exc
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, fd)
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"the record {os.fspath(path)!r} is not a regular file")
        os.fchmod(fd, 0o600)
        torn = found.st_size > 0 and os.pread(fd, 1, found.st_size - 1) != b"\n"
        undo.pop_all()
    return fd, torn


def _tell(name: str, **fields: str) -> None:
    to_stdlib(LogEvent(name=name, level=logging.WARNING, fields=fields))
