"""Reads and writes descriptors in an event loop: pipes, sockets, terminals, files.

A descriptor is watched only during a read or write, so the loop does not keep its owner alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK = 1 << 18


class Pipes:
    """One descriptor to read, one to write; close() closes both."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd, self._write_fd = read_fd, write_fd
        self._waiting: set[asyncio.Future[None]] = set()
        self._close_both = weakref.finalize(self, _close, read_fd, write_fd)
        for fd in (read_fd, write_fd):
            if _is_pipe(fd):  # other programs share a terminal and expect it to block
                os.set_blocking(fd, False)

    async def read(self) -> bytes:
        """Return bytes as soon as there are any; b"" at the end."""
        while True:
            await self._ready(self._read_fd, write=False)
            with contextlib.suppress(BlockingIOError):
                return os.read(self._read_fd, CHUNK)

    async def write(self, data: bytes) -> None:
        """Write all of `data`; BrokenPipeError if the reader has closed its end."""
        view = memoryview(data)
        while view:
            self._check_open()
            try:
                view = view[os.write(self._write_fd, view[:CHUNK]) :]
            except BlockingIOError:
                await self._ready(self._write_fd, write=True)

    def on_hangup(self, callback: Callable[[], object]) -> None:
        """Call back once if the reader closes its end; works for pipes only."""
        if not stat.S_ISFIFO(os.fstat(self._write_fd).st_mode):
            return
        loop = asyncio.get_running_loop()

        def hung_up() -> None:
            loop.remove_reader(self._write_fd)
            callback()

        loop.add_reader(self._write_fd, hung_up)  # readable when the pipe breaks

    def close(self) -> None:
        """Close both descriptors and fail pending calls. Calling it again does nothing."""
        if not self._close_both.alive:
            return
        loop = asyncio.get_running_loop()
        for fd in (self._read_fd, self._write_fd):
            loop.remove_reader(fd)
            loop.remove_writer(fd)
        self._close_both()
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(BrokenPipeError("closed meanwhile"))

    def _check_open(self) -> None:
        if not self._close_both.alive:
            raise BrokenPipeError("closed")

    async def _ready(self, fd: int, *, write: bool) -> None:
        self._check_open()
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        watch, forget = (
            (loop.add_writer, loop.remove_writer)
            if write
            else (loop.add_reader, loop.remove_reader)
        )
        try:
            watch(fd, lambda: None if ready.done() else ready.set_result(None))
        except PermissionError:  # a regular file, which is always ready
            return
        self._waiting.add(ready)
        try:
            await ready
        finally:
            self._waiting.discard(ready)
            if self._close_both.alive:
                forget(fd)


def _is_pipe(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)
