"""Reads a trajectory back: whole lines as events, a torn end and foreign lines told of.

# SECURITY: the file may be anybody's. Lines, events and bytes have caps, and nothing in it raises.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from atoll.errors import ConfigError
from atoll.trajectory import tree
from atoll.trajectory.codec import from_dict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.trajectory.events import Event

LINE_CAP = 4 << 20
BYTES_CAP = 512 << 20
EVENTS_CAP = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """What was read of a file."""

    events: tuple[Event, ...]
    torn: bool = False
    """The last line is not whole: it was being written, or whoever wrote it was killed."""
    skipped: int = 0
    """Lines that are no JSON object, or too long."""
    cut: bool = False
    """There is more in the file than is read."""

    def tree(self) -> tuple[tree.Node, ...]:
        """The runs, each with what happened in it beneath, and what that cost."""
        return tree.grow(self.events)


def read(
    path: str | os.PathLike[str],
    *,
    line_cap: int = LINE_CAP,
    bytes_cap: int = BYTES_CAP,
    events_cap: int = EVENTS_CAP,
) -> Trajectory:
    """The trajectory in a file; ConfigError if there is no such file."""
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
    """Lines; one that is too long comes as its first `cap` + 1 bytes, its rest is passed over."""
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
    except (ValueError, RecursionError):  # no JSON, or brackets without end
        return None
    return from_dict(data) if isinstance(data, dict) else None
