"""Regular expressions without RE2: the standard library's `re`, in a child process.

SECURITY: pattern and text are a guest's, and `re` backtracks: `(a+)+$` can run for ever. So it
runs in a process of its own, with limits. The process is killed if a piece of text takes too long.
"""

from __future__ import annotations

import os
import struct
import sys
import time
import weakref
from bisect import bisect_left
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.concurrency import forks
from atoll.concurrency.piped_child import PipedChild
from atoll.errors import ConfigError

if TYPE_CHECKING:
    Span = tuple[int, int]

SECONDS = 5.0
"""CPU time that the child may use for one piece of text."""
MAX_SECONDS = 60.0
"""Wall-clock time that one piece may take, on a machine so busy that the child hardly runs."""
NO_CHILD = "regular expressions need google-re2 here; install it for the host's Python"
_REMEMBERED = 16
_NUMBER = struct.Struct("<q")
_PROGRAM = str(Path(__file__).with_name("backtracking_child.py"))


class Match:
    """The span of a match, with those methods of RE2's match objects that the searches use."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def start(self) -> int:
        """Return the offset at which the match begins."""
        return self._span[0]

    def span(self) -> Span:
        """Return the offsets at which the match begins and ends."""
        return self._span


class ChildExpression:
    """A compiled expression with the interface of RE2's; several threads may use it.

    The child returns all matches of a piece of text, so that further searches in it are free.
    """

    programsize = 1

    def __init__(self, pattern: str, *, ignore_case: bool, latin1: bool) -> None:
        self._lock = forks.new_lock()
        self._found: dict[int, tuple[int, list[Span]]] = {}
        self._child = _start()
        self._end = weakref.finalize(self, self._child.end)
        self._failure = ""
        head = b"\1" if ignore_case else b"\0", b"\1" if latin1 else b"\0"
        answer = self._ask(b"".join(head) + pattern.encode("utf-8", "surrogatepass"))
        if answer:
            raise ConfigError(f"not a regular expression: {answer.decode('utf-8', 'replace')}")

    def search(self, buffer: Any, at: int, end: int) -> Match | None:
        """Return the first match that begins at `at` or later and ends before `end`."""
        with self._lock:
            known, spans = self._found.get(end, (end + 1, []))
            if not known <= at or (spans and spans[-1][0] < at and len(spans) >= MOST):
                spans = self._search(buffer, at, end)
            place = bisect_left(spans, (at, at))
            return Match(spans[place]) if place < len(spans) else None

    def forget(self) -> None:
        """Drop the matches known of a buffer whose content has changed."""
        with self._lock:
            self._found.clear()

    def _search(self, buffer: Any, at: int, end: int) -> list[Span]:
        with memoryview(buffer) as view:
            answer = self._ask(bytes(view[at:end]))
        numbers = [number for (number,) in _NUMBER.iter_unpack(answer)]
        spans = [
            (at + start, at + stop)
            for start, stop in zip(numbers[::2], numbers[1::2], strict=True)
            if 0 <= start <= stop <= end - at
        ]
        while len(self._found) >= _REMEMBERED:
            del self._found[next(iter(self._found))]
        self._found[end] = at, spans
        return spans

    def _ask(self, data: bytes) -> bytes:
        """Return the child's answer; ConfigError if it takes too long, and at every later call."""
        if self._failure:
            raise ConfigError(self._failure)
        limit = TimeLimit(self._child.pid)
        try:
            self._child.send(_NUMBER.pack(len(data)) + data, limit.left)
            size = _size(self._child.receive(_NUMBER.size, limit.left))
            return self._child.receive(size, limit.left)
        except (OSError, EOFError, ValueError, struct.error) as exc:
            self._failure = _failure(exc)
            self._end()
            raise ConfigError(self._failure) from None


MOST = 10_000
"""Most matches in one answer of the child."""


def _size(head: bytes) -> int:
    (size,) = _NUMBER.unpack(head)
    if not 0 <= size <= MOST * 2 * _NUMBER.size:
        raise ValueError("the child sent an invalid length")
    return int(size)


class TimeLimit:
    """Limits the CPU time of a process from now on, so that load by other programs does not count.

    A wall-clock limit is the upper bound.
    """

    def __init__(self, pid: int) -> None:
        self._pid, self._before = pid, _cpu_seconds(pid)
        self._end = time.monotonic() + MAX_SECONDS

    def left(self) -> float:
        """Return the seconds that are left of both limits."""
        used = _cpu_seconds(self._pid) - self._before
        return min(SECONDS - used, self._end - time.monotonic())


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process; 0 if it has ended, which the caller sees by its pipes."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _failure(exc: Exception) -> str:
    if isinstance(exc, TimeoutError):
        why = f"it took longer than {SECONDS:g} s for one piece of text"
    else:
        why = "it took too much memory or time"
    advice = "write it without repeats inside repeats, or install google-re2 on the host"
    return f"the regular expression was stopped: {why}; {advice}"


def _start() -> PipedChild:
    command = [sys.executable or "python3", "-I", "-S", _PROGRAM, str(MOST)]
    try:
        return PipedChild(command, env={})
    except OSError as exc:  # for one, the jail of an archive's reader may not start processes
        raise ConfigError(f"{NO_CHILD}: {exc}") from exc
