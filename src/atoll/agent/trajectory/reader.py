"""Reads a trajectory: complete lines as events; reports an incomplete last line and invalid lines.

# SECURITY: the file may be forged. Lines, events and bytes have caps, and no content raises.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from atoll.agent.trajectory import tree
from atoll.agent.trajectory.codec import from_dict, to_dict
from atoll.agent.trajectory.conversations import conversations
from atoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from atoll.agent.trajectory.events import Event

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
        lines = (json.dumps(to_dict(one), separators=(",", ":")) + "\n" for one in self.events)
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
    """Return the trajectory in a file; ConfigError if there is no such file."""
    events: list[Event] = []
    skipped, torn, cut = 0, False, False
    with _open(path) as file:
        for line in _lines(file, line_cap):
            if len(events) >= events_cap or file.tell() > bytes_cap:
                cut = True
                break
            found, torn = _event(line, line_cap), not line.endswith(b"\n")
            if found is not None:
                events.append(found)
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
