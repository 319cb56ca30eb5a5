"""Bytes at a fixed address, searched by libc through ctypes, which releases the GIL."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

_MAP_NORESERVE = 0x4000
_PRIVATE = mmap.MAP_PRIVATE | _MAP_NORESERVE
# ctypes needs a writable buffer, so the mapping is private; nothing writes, so nothing is copied.
_PROTECTION = mmap.PROT_READ | mmap.PROT_WRITE


def _function(name: str, *arguments: Any) -> Any:
    function = getattr(ctypes.CDLL(None), name)
    function.restype, function.argtypes = ctypes.c_void_p, arguments
    return function


_memmem = _function("memmem", ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
_memchr = _function("memchr", ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
_memrchr = _function("memrchr", ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)


class Memory:
    """Some bytes of a buffer, which stays alive as long as this object."""

    def __init__(self, buffer: Any, size: int) -> None:
        self.buffer, self.size = buffer, size
        self._held = ctypes.c_char.from_buffer(buffer)  # keeps it from being closed
        self._base = ctypes.addressof(self._held)

    @classmethod
    def of_file(cls, fd: int, size: int) -> Memory:
        """Map the first `size` bytes of a sealed memory file; the descriptor may be closed."""
        if not size:
            return cls(bytearray(1), 0)
        return cls(mmap.mmap(fd, size, flags=_PRIVATE, prot=_PROTECTION), size)

    @classmethod
    def room(cls, most: int) -> mmap.mmap:
        """Return a buffer for up to `most` bytes; pages that are never written take no memory."""
        return mmap.mmap(-1, max(most, 1), flags=_PRIVATE | mmap.MAP_ANONYMOUS, prot=_PROTECTION)

    def part(self, start: int, end: int) -> bytes:
        """Return a copy of these bytes."""
        return bytes(self.buffer[start : min(end, self.size)])

    def find(self, needle: bytes, start: int, end: int) -> int:
        """Return the offset of the first whole needle between the two, or -1."""
        if end - start < len(needle):
            return -1
        return self._place(_memmem(self._base + start, end - start, needle, len(needle)))

    def find_byte(self, byte: int, start: int, end: int) -> int:
        """Return the first offset of the byte between the two, or -1."""
        return self._place(_memchr(self._base + start, byte, max(end - start, 0)))

    def find_last_byte(self, byte: int, start: int, end: int) -> int:
        """Return the last offset of the byte between the two, or -1."""
        return self._place(_memrchr(self._base + start, byte, max(end - start, 0)))

    def _place(self, address: int | None) -> int:
        return -1 if address is None else address - self._base
