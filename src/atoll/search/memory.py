"""Bytes that are searched where they lie: by functions of the C library, on Linux.

Other systems, on which clients of a service run, search by methods of Python's own.
"""

from __future__ import annotations

import mmap
import sys
from typing import Any

if sys.platform == "linux":
    import ctypes

    _MAP_NORESERVE = 0x4000
    _PRIVATE = mmap.MAP_PRIVATE | _MAP_NORESERVE
    # ctypes needs a writable buffer, so the mapping is private; nothing writes: nothing is copied.
    _PROTECTION = mmap.PROT_READ | mmap.PROT_WRITE

    def _function(name: str, *arguments: Any) -> Any:
        function = getattr(ctypes.CDLL(None), name)
        function.restype, function.argtypes = ctypes.c_void_p, arguments
        return function

    _place, _size = ctypes.c_void_p, ctypes.c_size_t
    _memmem = _function("memmem", _place, _size, ctypes.c_char_p, _size)
    _memchr = _function("memchr", _place, ctypes.c_int, _size)
    _memrchr = _function("memrchr", _place, ctypes.c_int, _size)

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
            """Return a buffer for up to `most` bytes; pages never written take no memory."""
            return mmap.mmap(
                -1, max(most, 1), flags=_PRIVATE | mmap.MAP_ANONYMOUS, prot=_PROTECTION
            )

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

else:

    class Memory:
        """Some bytes of a buffer, which stays alive as long as this object."""

        def __init__(self, buffer: Any, size: int) -> None:
            self.buffer = bytes(buffer) if isinstance(buffer, memoryview) else buffer
            self.size = size

        @classmethod
        def of_file(cls, fd: int, size: int) -> Memory:
            """Map the first `size` bytes of a file; the descriptor may be closed."""
            if not size:
                return cls(bytearray(1), 0)
            return cls(mmap.mmap(fd, size, access=mmap.ACCESS_READ), size)

        @classmethod
        def room(cls, most: int) -> mmap.mmap:
            """Return a buffer for up to `most` bytes."""
            return mmap.mmap(-1, max(most, 1))

        def part(self, start: int, end: int) -> bytes:
            """Return a copy of these bytes."""
            return bytes(self.buffer[start : min(end, self.size)])

        def find(self, needle: bytes, start: int, end: int) -> int:
            """Return the offset of the first whole needle between the two, or -1."""
            return int(self.buffer.find(needle, start, max(start, end)))

        def find_byte(self, byte: int, start: int, end: int) -> int:
            """Return the first offset of the byte between the two, or -1."""
            return self.find(bytes((byte,)), start, end)

        def find_last_byte(self, byte: int, start: int, end: int) -> int:
            """Return the last offset of the byte between the two, or -1."""
            return int(self.buffer.rfind(bytes((byte,)), start, max(start, end)))
