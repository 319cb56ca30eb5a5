"""The worker's access to the guest's linear memory: to interrupt its Python, to write a context.

CPython has a table of offsets for debuggers (_Py_DebugOffsets), which gives the addresses. The
pending exception is set there as another thread would do it, and the eval loop raises it.

SECURITY: values read here are not trusted. Every write stays within the guest's own memory, so a
guest that manipulates them harms only itself.
"""

from __future__ import annotations

import ctypes
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MARK = b"xdebugpy"
_OFFSETS = struct.Struct("<8x2Q3Q16Q9Q")
_INTERPRETERS_HEAD, _THREADS_HEAD, _THREAD_ID, _INTERP = 4, 8, 26, 24
_POINTER = 4
_ASYNC_EXCEPTION = 1 << 3
_PYTHON_3_14 = 0x030E


class UnknownLayoutError(Exception):
    """The memory has an unexpected layout, so its Python cannot be interrupted."""


@dataclass(frozen=True, slots=True)
class Cells:
    """The guest's addresses at which an interrupt is set."""

    breaker: int
    exception: int
    interrupt: int
    """The type KeyboardInterrupt itself."""


class LinearMemory:
    """The memory of one instance, in the worker's address space."""

    def __init__(self, image: str) -> None:
        self._image = image
        self._start, self._end = _find(image)

    def interrupt(self, cells: Cells) -> None:
        """Set a pending KeyboardInterrupt in the guest."""
        self._set(cells.exception, cells.interrupt)
        self._set(cells.breaker, self._get(cells.breaker) | _ASYNC_EXCEPTION)

    def is_interrupted(self, cells: Cells) -> bool:
        """Return whether the interrupt is still pending."""
        return self._get(cells.exception) != 0

    def calm(self, cells: Cells) -> None:
        """Withdraw the interrupt, while the guest does not run."""
        self._set(cells.exception, 0)

    def read_from(self, fd: int, address: int, size: int) -> bool:
        """Read a file to a guest address; return whether memory and file were large enough."""
        self._start, self._end = _find(self._image)  # it may have grown
        if not 0 <= address <= self._end - self._start - size:
            return False
        room, done = (ctypes.c_char * size).from_address(self._start + address), 0
        view = memoryview(room)
        while done < size and (got := os.preadv(fd, [view[done:]], done)):
            done += got
        return done == size

    def cells(self, interrupt: int) -> Cells:
        """Return the addresses for interrupts; UnknownLayoutError if they are not certain."""
        whole = ctypes.string_at(self._start, self._end - self._start)
        runtime = whole.find(MARK)
        if runtime < 0:
            raise UnknownLayoutError("it has no table of offsets")
        table = _OFFSETS.unpack_from(whole, runtime)
        if table[0] >> 16 != _PYTHON_3_14 or table[1]:
            raise UnknownLayoutError(f"version {table[0]:#x}")
        interpreter = self._get(runtime + table[_INTERPRETERS_HEAD])
        thread = self._get(interpreter + table[_THREADS_HEAD])
        cells = Cells(
            breaker=thread + table[_INTERP] + _POINTER,
            exception=thread + table[_THREAD_ID] - _POINTER,
            interrupt=interrupt,
        )
        if self._get(thread + table[_INTERP]) != interpreter or self._get(cells.exception):
            raise UnknownLayoutError("its main thread is not where it should be")
        return cells

    def _get(self, address: int) -> int:
        self._check(address)
        return ctypes.c_uint32.from_address(self._start + address).value

    def _set(self, address: int, value: int) -> None:
        self._check(address)
        ctypes.c_uint32.from_address(self._start + address).value = value

    def _check(self, address: int) -> None:
        if not 0 <= address <= self._end - self._start - _POINTER:
            raise UnknownLayoutError(f"{address:#x} is outside of the memory")


def _find(image: str) -> tuple[int, int]:
    """Return the first and last byte: the private writable mapping that contains the image."""
    spans = list(_writable())
    at = next((n for n, (_, _, name) in enumerate(spans) if name == image), None)
    if at is None:
        raise UnknownLayoutError("no memory is mapped from its image")
    start, end, _ = spans[at]
    for first, last, _ in reversed(spans[:at]):
        start = first if last == start else start
    for first, last, _ in spans[at:]:
        end = last if first == end else end
    return start, end


def _writable() -> Iterator[tuple[int, int, str]]:
    """Yield every private writable mapping of this process: first byte, last byte, file."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            span, mode, _offset, _device, _inode, *name = line.split(None, 5)
            if mode == "rw-p":
                first, _, last = span.partition("-")
                yield int(first, 16), int(last, 16), "".join(name).rstrip("\n")
