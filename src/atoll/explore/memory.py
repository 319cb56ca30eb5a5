"""Bytes that lie still in memory: found in by libc, which lets other threads run meanwhile."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

_MAP_NORESERVE = 0x4000
_PRIVATE = mmap.MAP_PRIVATE | _MAP_NORESERVE
# A private mapping may be written to, which ctypes asks for; nobody does, so nothing is copied.
_PROTECTION = mmap.PROT_READ | mmap.PROT_WRITE


def _function(name: str, *arguments: Any) -> Any:
    function = getattr(ctypes.CDLL(None), name)
    function.restype, function.argtypes = ctypes.c_void_p, arguments
    return function


_memmem = _function("memmem", ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
_memchr = _function("memchr", ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
_memrchr = _function("memrchr", ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)


class Memory:
    """Some bytes of a buffer. Whoever holds this holds them; they go with the last holder."""

    def __init__(self, buffer: Any, size: int) -> None:
        self.buffer, self.size = buffer, size
        self._held = ctypes.c_char.from_buffer(buffer)  # so the buffer cannot be closed or moved
        self._base = ctypes.addressof(self._held)

    @classmethod
    def of_file(cls, fd: int, size: int) -> Memory:
        """The first bytes of a sealed memory file, mapped; the descriptor may be closed."""
        if not size:
            return cls(bytearray(1), 0)
        return cls(mmap.mmap(fd, size, flags=_PRIVATE, prot=_PROTECTION), size)

    @classmethod
    def room(cls, most: int) -> mmap.mmap:
        """A buffer for up to so many bytes, of which those never written to cost nothing."""
        return mmap.mmap(-1, max(most, 1), flags=_PRIVATE | mmap.MAP_ANONYMOUS, prot=_PROTECTION)

    def part(self, start: int, end: int) -> bytes:
        """A copy of these bytes."""
        return bytes(self.buffer[start : min(end, self.size)])

    def find(self, needle: bytes, start: int, end: int) -> int:
        """Where the needle first is, whole, between the two; or -1."""
        if end - start < len(needle):
            return -1
        return self._place(_memmem(self._base + start, end - start, needle, len(needle)))

    def find_byte(self, byte: int, start: int, end: int) -> int:
        """Where the byte first is between the two; or -1."""
        return self._place(_memchr(self._base + start, byte, max(end - start, 0)))

    def find_last_byte(self, byte: int, start: int, end: int) -> int:
        """Where the byte last is between the two; or -1."""
        return self._place(_memrchr(self._base + start, byte, max(end - start, 0)))

    def _place(self, address: int | None) -> int:
        return -1 if address is None else address - self._base
