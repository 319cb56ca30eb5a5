"""What waits to be sent on a connection, with a bound on how much that may be."""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import socket
import termios
from collections import deque

from atoll.errors import BusyError
from atoll.wire import blobs

CROWDED = 8 << 20
"""Unread bytes past which a call waits until the other side has read; so a guest's flood of calls
costs itself time, and not its client the connection."""
MAX_WAITING = 64 << 20
"""Bytes of calls that may wait so; past it, BusyError."""
MAX_UNREAD = 64 << 20
"""Unread bytes, those in memory files too, past which the other side is given up."""
UNREAD_SECONDS = 0.002


class Outbox:
    """Messages in their order, each with its descriptors, sent as the other side reads."""

    def __init__(self, sock: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._queue: deque[tuple[memoryview, list[int]]] = deque()
        self._waiting = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._open, self._writing = True, False
        self.size = 0
        self.read = float("-inf")
        """When the other side last made room by reading, by the loop's clock."""

    async def wait_for_room(self, size: int) -> None:
        """Until there is no crowd; BusyError if too much waits for that already."""
        if self._has_room.is_set():
            return
        if self._waiting + size > MAX_WAITING:
            raise BusyError("the other side is slow, and too much waits for it already")
        self._waiting += size
        try:
            await self._has_room.wait()
        finally:
            self._waiting -= size

    def put(self, line: bytes, fds: list[int]) -> bool:
        """Send a message, now or later; False if the other side has not read for too long."""
        if self.size > MAX_UNREAD:
            blobs.close_all(fds)
            return False
        self._queue.append((memoryview(line), fds))
        self.size += len(line) + blobs.size_of(fds)
        if len(self._queue) == 1:
            self._flush()
        if self.size > CROWDED:
            self._has_room.clear()
        return True

    def close(self) -> None:
        """Send nothing more."""
        self._open = False
        self._loop.remove_writer(self._socket.fileno())
        self._drop()

    def _flush(self) -> None:
        """Send what there is room for. Descriptors wait until all before them has been read.

        Otherwise memory files without number could lie in the socket's buffer, counted by nobody.
        """
        if self._writing:
            self.read = self._loop.time()
        try:
            while self._queue:
                if self._queue[0][1] and self._unread():
                    self._loop.call_later(UNREAD_SECONDS, self._flush_again)
                    break
                self._send_some()
        except BlockingIOError:
            self._loop.add_writer(self._socket.fileno(), self._flush)
            self._writing = True
            return
        except OSError:
            self._drop()
            with contextlib.suppress(OSError):  # a message is lost: nobody may wait for it
                self._socket.shutdown(socket.SHUT_RDWR)
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._socket.fileno())

    def _flush_again(self) -> None:
        if self._open:
            self._flush()

    def _unread(self) -> bool:
        """Whether something that was sent has not been read."""
        return fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, bytes(4)) != bytes(4)

    def _send_some(self) -> None:
        """As much of the first message as there is room for; descriptors go with its first byte."""
        view, fds = self._queue[0]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        sent = self._socket.sendmsg([view], rights)
        self.size -= sent + blobs.size_of(fds)
        blobs.close_all(fds)
        if sent == len(view):
            self._queue.popleft()
        else:
            self._queue[0] = (view[sent:], [])
        if self.size <= CROWDED:
            self._has_room.set()

    def _drop(self) -> None:
        blobs.close_all([fd for _, fds in self._queue for fd in fds])
        self._queue.clear()
        self.size = 0
        self._has_room.set()
