"""Reads a trajectory: complete lines as events; reports an incomplete last line and invalid lines.

# SECURITY: the file may be forged. Lines, events and bytes have caps, and no content raises.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import itertools
import json
import logging
import os
import secrets
import stat
import time
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any, Self

from atoll.agent.trajectory import tree
from atoll.agent.trajectory.events import FinalGiven, ModelAnswered, ModelAsked, from_dict, to_dict
from atoll.concurrency import forks
from atoll.errors import ConfigError
from atoll.log import LogEvent, to_stdlib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from atoll.agent.trajectory.events import Event

    Messages = list[dict[str, Any]]


def conversations(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Return for each loop, and each single call, its last conversation with the reply.

    A row has `messages` of role and content, and facts about the run under `metadata`.
    """
    said: dict[tuple[str, str | None], Messages] = {}
    rows: dict[tuple[str, str | None], dict[str, Any]] = {}
    asked: dict[tuple[str, str], ModelAsked] = {}
    for event in events:
        place = (event.run, event.parent)
        if isinstance(event, ModelAsked):
            said[place] = said.get(place, [])[: event.repeated] + list(event.messages)
            asked[event.run, event.call] = event
        elif isinstance(event, ModelAnswered) and (event.run, event.call) in asked:
            reply = {"role": "assistant", "content": event.text}
            row = [dict(message) for message in said[place]]
            rows[place] = _row([*row, reply], asked[event.run, event.call])
        elif isinstance(event, FinalGiven) and place in rows:
            rows[place]["metadata"] |= {"ended": event.ended, "answer": event.text}
    return list(rows.values())


def _row(messages: Messages, asked: ModelAsked) -> dict[str, Any]:
    facts = {"run": asked.run, "call": asked.call, "model": asked.model, "depth": asked.depth}
    return {"messages": messages, "metadata": facts}


LINE_CAP = 4 << 20
BYTES_CAP = 512 << 20
EVENTS_CAP = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The events of a run, or of a file of runs: a sequence with a tree, a file and a page."""

    events: tuple[Event, ...] = ()
    torn: bool = False
    """Whether the last line is incomplete: it is being written, or its writer was killed."""
    skipped: int = 0
    """Number of lines that are not a JSON object, or too long."""
    cut: bool = False
    """Whether the file has more events than were read."""

    def tree(self) -> tuple[tree.Node, ...]:
        """Return the runs as trees of their events, with costs."""
        return tree.grow(self.events)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the events to a file of JSON lines that only this user may read."""
        lines = (json.dumps(to_dict(event), separators=(",", ":")) + "\n" for event in self.events)
        write_private(path, lines)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return a page for a browser; with a path, write it there too."""
        from atoll.agent.trajectory.html import page  # noqa: PLC0415 - it imports this file

        text = "".join(page(self))
        if path is not None:
            write_private(path, [text])
        return text

    def conversations(self) -> list[dict[str, Any]]:
        """Return the messages to models and their replies, as rows for training."""
        return conversations(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    def __getitem__(self, at: int) -> Event:
        return self.events[at]


def read(
    path: str | os.PathLike[str],
    *,
    line_cap: int = LINE_CAP,
    bytes_cap: int = BYTES_CAP,
    events_cap: int = EVENTS_CAP,
) -> Trajectory:
    """Return the trajectory in a file; ConfigError if the file does not exist."""
    events: list[Event] = []
    skipped, torn, cut = 0, False, False
    with _open(path) as file:
        for line in _lines(file, line_cap):
            if len(events) >= events_cap or file.tell() > bytes_cap:
                cut = True
                break
            event, torn = _event(line, line_cap), not line.endswith(b"\n")
            if event is not None:
                events.append(event)
            elif line.strip() and not torn:
                skipped += 1
    return Trajectory(events=tuple(events), torn=torn, skipped=skipped, cut=cut)


def write_private(path: str | os.PathLike[str], parts: Iterable[str]) -> None:
    """Write a file that only this user may read; ConfigError if that is not possible."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
            file.writelines(parts)
    except OSError as exc:
        raise ConfigError(f"cannot write {os.fspath(path)!r}: {exc.strerror}") from exc


def _open(path: str | os.PathLike[str]) -> IO[bytes]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError as exc:
        raise ConfigError(f"cannot read the record {os.fspath(path)!r}: {exc.strerror}") from exc
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ConfigError(f"the record {os.fspath(path)!r} is not a regular file")
    return os.fdopen(fd, "rb")


def _lines(file: IO[bytes], cap: int) -> Iterator[bytes]:
    """Yield lines; of one that is too long the first `cap` + 1 bytes, and skip its rest."""
    while line := file.readline(cap + 1):
        end = line[-1:]
        while end != b"\n" and (rest := file.readline(cap)):
            end = rest[-1:]
        yield line if line.endswith(b"\n") or end != b"\n" else line[:-1] + b"\n"


def _event(line: bytes, cap: int) -> Event | None:
    if len(line) > cap:
        return None
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):  # not JSON, or nested too deep
        return None
    return from_dict(data) if isinstance(data, dict) else None


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
            self._fd, self._torn = _open_for_append(path)

    def emit(self, event: Event) -> Event:
        """Write an event; return it with its id, run, time and elapsed filled in."""
        event = copy.copy(event)  # its fields are within their limits already
        with self._lock:
            for name, value in (
                ("id", event.id or f"e{next(self._ids)}"),
                ("run", event.run or self.run),
                ("at", event.at or datetime.now(UTC).isoformat(timespec="milliseconds")),
                (
                    "elapsed_ms",
                    event.elapsed_ms or round((time.monotonic() - self._begun) * 1000, 3),
                ),
            ):
                object.__setattr__(event, name, value)
            line = json.dumps(to_dict(event), separators=(",", ":")).encode() + b"\n"
            self._kept.append((len(line), event))
            self._bytes += len(line)
            while self._bytes > self._cap and len(self._kept) > 1:
                self._bytes -= self._kept.popleft()[0]
            failure = None if self._fd is None else self._write(self._fd, line)
        if failure is not None:
            _tell("trajectory_not_written", path=os.fspath(self._path or ""), reason=str(failure))
        if self._on_event is not None:
            self._call(self._on_event, event)
        return event

    def new_call(self) -> str:
        """Return a new id for a call, unique in this run."""
        return f"c{next(self._calls)}"

    @property
    def events(self) -> tuple[Event, ...]:
        """Return the events that are still in memory."""
        with self._lock:
            return tuple([event for _, event in self._kept])

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

    def _write(self, fd: int, line: bytes) -> OSError | None:
        """Append a line; return the reason of the first failure."""
        whole = b"\n" + line if self._torn else line  # ends an incomplete line
        try:
            written = os.write(fd, whole)
        except OSError as exc:
            return self._failed(exc)
        self._torn = (self._torn and not written) or 0 < written < len(whole)
        return self._failed(OSError(errno.ENOSPC, "no room")) if written < len(whole) else None

    def _failed(self, reason: OSError) -> OSError | None:
        self.lost += 1
        return reason if self.lost == 1 else None

    def _call(self, on_event: Callable[[Event], None], event: Event) -> None:
        """Call the listener without the lock: it may be slow, or emit events itself."""
        try:
            on_event(event)
        except Exception as exc:  # noqa: BLE001 - a listener's fault is not the run's
            self._on_event = None
            _tell("trajectory_listener_failed", reason=f"{type(exc).__name__}: {exc}")


def _open_for_append(path: str | os.PathLike[str]) -> tuple[int, bool]:
    """Open the file with mode 0600; return it, and whether its last line is incomplete."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
    try:
        fd = os.open(path, flags, 0o600)
    except OSError as exc:
        raise ConfigError(f"cannot write the record {os.fspath(path)!r}: {exc.strerror}") from exc
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, fd)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"the record {os.fspath(path)!r} is not a regular file")
        os.fchmod(fd, 0o600)
        torn = status.st_size > 0 and os.pread(fd, 1, status.st_size - 1) != b"\n"
        undo.pop_all()
    return fd, torn


def _tell(name: str, **fields: str) -> None:
    to_stdlib(LogEvent(name=name, level=logging.WARNING, fields=fields))
