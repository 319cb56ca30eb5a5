"""Bytes beside a message: sealed memory files that are passed as descriptors, not in the JSON.

SECURITY: a received descriptor is read only if it is a memory file whose content and size are
sealed; anything else could block the reader, or change while it is read.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Any

from atoll.errors import ConfigError
from atoll.sandbox.context import Context

MAX_BLOB_BYTES = 1 << 30
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_WIDTHS = (1, 2, 4)


def write(data: bytes | bytearray | memoryview) -> int:
    """Return a sealed memory file that holds `data`."""
    fd = os.memfd_create("atoll-blob", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS | fcntl.F_SEAL_SEAL)
    return fd


def read(fd: int, most: int = MAX_BLOB_BYTES) -> bytes:
    """Return the content of a memory file of at most `most` bytes, and close it."""
    try:
        size = os.fstat(fd).st_size if _is_sealed(fd) else -1
        if not 0 <= size <= most:
            raise ConfigError(f"no sealed memory file of at most {most:,} bytes")
        if size == 0:
            return b""
        with mmap.mmap(fd, size, prot=mmap.PROT_READ) as view:
            return view[:]
    finally:
        os.close(fd)


def _is_sealed(fd: int) -> bool:
    """Return whether it is a memory file whose content and size are sealed."""
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS == SEALS
    except OSError:
        return False


def adopt_context(facts: dict[str, Any], fd: int) -> Context:
    """Return the context that a client passed; ConfigError if it does not fit its description."""
    try:
        context = Context(
            fd=fd,
            width=_one_of(facts["width"], _WIDTHS),
            length=_number(facts["length"]),
            ascii_only=_flag(facts["ascii"]),
            json_text=_flag(facts["json"]),
        )
    except (KeyError, TypeError, ValueError):
        os.close(fd)
        raise ConfigError("the facts of a context are not what they have to be") from None
    fitting = _is_sealed(fd) and os.fstat(fd).st_size >= context.size
    if not fitting or (facts["ascii"] and context.width != 1):
        context.close()
        raise ConfigError("the context is not a sealed memory file of the announced size")
    return context


def _one_of(value: Any, allowed: tuple[int, ...]) -> int:
    if _number(value) not in allowed:
        raise ValueError(value)
    return int(value)


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 48:
        raise ValueError(value)
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(value)
    return value
