"""Reads our own stdin for a guest, piece by piece; `atoll run` uses it."""

from __future__ import annotations

import asyncio
import contextlib
import os

PIECE = 1 << 16


class PipedInput:
    """Reads a descriptor for a guest: a piece at a time, and only when the guest asks for one."""

    def __init__(self, fd: int = 0) -> None:
        self._fd, self._turn = fd, asyncio.Lock()

    async def read(self, size: int) -> bytes:
        """Return up to `size` bytes as soon as there are some; b"" at the end."""
        async with self._turn:
            await self._wait()
            return os.read(self._fd, min(size, PIECE))

    async def _wait(self) -> None:
        """Wait until a read does not block. A wait can be cancelled, a blocked read cannot."""
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        try:
            loop.add_reader(self._fd, ready.set)
        except PermissionError:  # epoll does not take files and /dev/null, which never block
            return
        try:
            await ready.wait()
        finally:
            with contextlib.suppress(OSError):
                loop.remove_reader(self._fd)
