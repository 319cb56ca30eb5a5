"""Writes to a FIFO of a guest, which may not read it, or may have put something else there.

SECURITY: the FIFO is opened below the guest's folder without waiting, and checked to be one.
"""

from __future__ import annotations

import asyncio
import os
import stat

from atoll.errors import BusyError
from atoll.files.openat2 import open_beneath

SEND_SECONDS = 10.0
_PAUSE_SECONDS = 0.005


async def send(folder: int, path: str, data: bytes) -> bool:
    """Write all bytes to the FIFO at `path`; return False if there is none that is read.

    BusyError if its reader takes nothing for SEND_SECONDS.
    """
    fd = _open(folder, path)
    if fd is None:
        return False
    try:
        await asyncio.wait_for(_write(fd, data), SEND_SECONDS)
    except (TimeoutError, OSError):
        raise BusyError("the guest takes no requests now: try again later") from None
    finally:
        os.close(fd)
    return True


def _open(folder: int, path: str) -> int | None:
    try:
        fd = open_beneath(folder, path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        os.close(fd)
        return None
    return fd


async def _write(fd: int, data: bytes) -> None:
    """Write all of it, as the reader takes it."""
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            await asyncio.sleep(_PAUSE_SECONDS)
