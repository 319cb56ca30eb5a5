"""What waits to be written to the other side of a connection, in order, as it reads."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from atoll.errors import BusyError
from atoll.rpc.passed_fds import close_all, size_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.rpc.blobs import Buffer

    Write = Callable[[Buffer, list[int]], int]

MAX_WAITING = 64 << 20
"""Bytes of messages that may wait for room; past it, BusyError."""
RETRY_SECONDS = 0.002


class NotYetError(Exception):
    """The message may not be written before the other side has read what was."""


class Outbox:
    """Messages with their descriptors; above `high_water` unread bytes, others wait for room.

    `write` sends a part of a message and all of its descriptors; it closes nothing. `on_fault` is
    called once what waits is dropped because `write` failed, `on_room` when there is room again.
    """

    def __init__(
        self,
        fd: int,
        write: Write,
        on_fault: Callable[[OSError], None],
        on_room: Callable[[], None] | None = None,
        *,
        high_water: int = 0,
        max_waiting: int | None = MAX_WAITING,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd, self._write = fd, write
        self._high_water, self._max_waiting = high_water, max_waiting
        self._on_fault, self._on_room = on_fault, on_room
        self._queue: deque[tuple[memoryview, list[int]]] = deque()
        self._waiting = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._open, self._writing = True, False
        self.size = 0
        """Unread bytes, those in memory files too."""
        self.overrun = 0
        """Bytes that were put here while there was no room."""
        self.last_drained_at = float("-inf")
        """When the other side last made room by reading, by the loop's clock."""

    async def wait_for_room(self, size: int = 0) -> None:
        """Wait until there is room; BusyError if too much waits for that already."""
        if self._has_room.is_set():
            return
        if self._max_waiting is not None and self._waiting + size > self._max_waiting:
            raise BusyError("the other side is slow, and too much waits for it already")
        self._waiting += size
        try:
            while not self._has_room.is_set():  # another that waited may have taken it
                await self._has_room.wait()
        finally:
            self._waiting -= size

    def put(self, data: Buffer, fds: list[int]) -> None:
        """Send a message, now or as soon as the other side reads; its descriptors are closed."""
        view = memoryview(data)
        if not self._queue and not fds:
            try:  # there is nearly always room
                view = view[self._write(data, []) :]
            except BlockingIOError:
                pass
            except OSError as exc:
                self._on_fault(exc)
                return
            if not view:
                return
        size = len(view) + size_of(fds)
        self._queue.append((view, fds))
        self.size += size
        if not self._has_room.is_set():
            self.overrun += size
        if len(self._queue) == 1:
            self._flush()
        if self.size > self._high_water:
            self._has_room.clear()

    def close(self) -> None:
        """Send nothing more."""
        self._open = False
        self._loop.remove_writer(self._fd)
        self._drop()

    def _flush(self) -> None:
        """Send what there is room for."""
        if self._writing:
            self.last_drained_at = self._loop.time()
        try:
            while self._queue:
                self._write_first()
        except NotYetError:
            self._loop.call_later(RETRY_SECONDS, self._flush_again)
        except BlockingIOError:
            self._loop.add_writer(self._fd, self._flush)
            self._writing = True
            return
        except OSError as exc:
            self._drop()
            self._on_fault(exc)
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._fd)

    def _flush_again(self) -> None:
        if self._open:
            self._flush()

    def _write_first(self) -> None:
        """Write as much of the first message as there is room for."""
        view, fds = self._queue[0]
        sent = self._write(view, fds)
        self.size -= sent + size_of(fds)
        close_all(fds)
        if sent == len(view):
            self._queue.popleft()
        else:
            self._queue[0] = (view[sent:], [])
        if self.size <= self._high_water:
            self._tell_room()

    def _tell_room(self) -> None:
        if not self._has_room.is_set():
            self.overrun = 0
            self._has_room.set()
            if self._on_room is not None:
                self._on_room()

    def _drop(self) -> None:
        close_all([fd for _, fds in self._queue for fd in fds])
        self._queue.clear()
        self.size = 0
        self._tell_room()
