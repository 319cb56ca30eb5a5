"""Arranges a zygote's memory so that a fork copies little, and a guest's writes copy few pages.

    reserve_arenas() ── imports ──▶ free the blocks ──▶ settle(): pools, mappings, huge pages

A fork copies an entry for each page and a record for each mapping. So heaps lie together and become
huge pages, and neighbouring mappings of one library become one. None of it changes what code does.
"""

from __future__ import annotations

import array
import ctypes
import itertools
import mmap
import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import BinaryIO

_MADV_COLLAPSE = 25
_HUGE = 2 << 20
_ARENA, _POOL, _BLOCK = 1 << 20, 16 << 10, 512
"""What CPython takes memory in, divides it into, and the largest size that it serves from there."""
_MAX_FILLED = 64 << 20
"""Bytes of objects that fill gaps; with seven data libraries imported it takes 400 KB."""
_MAX_KEPT = 30
"""Pools that are kept from use in the first arena; in the last it is one."""
_ENTRY, _PRESENT = 8, 1 << 63
"""Of /proc/self/pagemap: bytes a page, and the flag of one that is in memory."""
_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Mapping(NamedTuple):
    """A line of /proc/self/maps."""

    start: int
    end: int
    mode: str
    offset: int
    file: str
    """Device, inode and path; "0" and empty for memory without a file."""

    def goes_on_in(self, other: Mapping) -> bool:
        """Return whether `other` maps the next bytes of the same file at the next address."""
        end_offset = self.offset + self.end - self.start
        return (self.end, end_offset, self.file) == (other.start, other.offset, other.file)


def reserve_arenas(size: int) -> list[bytes]:
    """Allocate the heap's arenas before any library is mapped, so that they are contiguous.

    Scattered between libraries they are too small for huge pages. The returned blocks keep the
    arenas from being freed; the caller frees the blocks later. CPython fills the arena first that
    has the fewest free pools, so earlier arenas keep more blocks: what stays unused, and is freed,
    is then at one end.
    """
    if not is_pymalloc():
        return []
    # The list has its size first: one that grows would leave its copies between the arenas.
    blocks = [b""] * (size // _BLOCK)
    for number in range(len(blocks)):
        blocks[number] = _bytes_of(_BLOCK)
    a_pool, an_arena, count = _POOL // _BLOCK - 1, _ARENA // _BLOCK, len(blocks)
    return [
        block
        for number, block in enumerate(blocks)
        if number % an_arena < a_pool * (1 + _MAX_KEPT * (count - number) // count)
    ]


def settle() -> dict[str, int]:
    """Arrange the memory; call it when everything is loaded and unused memory is freed."""
    fill_pools()
    return {"merged": merge_mappings(), "collapsed": collapse_heaps()}


_fillers: list[object] = []


def is_pymalloc() -> bool:
    """Return whether objects come from CPython's pools of blocks of one size.

    In a debug build, a free-threaded one or by PYTHONMALLOC, another allocator serves them.
    """
    try:
        name = ctypes.pythonapi._PyMem_GetCurrentAllocatorName  # noqa: SLF001 - no public one
    except AttributeError:
        return False
    name.restype = ctypes.c_char_p
    return bool(name() == b"pymalloc")


def fill_pools(most: int = _MAX_FILLED) -> None:
    """Fill the gaps in the heap, so that new objects of the zygote and its guests lie together.

    A gap in a page that holds older objects would have the page copied for each new object.
    `most` is how many bytes of fillers there may be.
    """
    if not is_pymalloc():
        return
    for size in range(32, _BLOCK + 1, 16):
        wanted, in_a_row, last = _POOL // size // 2, 0, 0
        while in_a_row < wanted and most > 0:  # then this pool was empty, and half of it is left
            most -= size
            _fillers.append(24.5 * len(_fillers) if size == 32 else _bytes_of(size))
            in_a_row = in_a_row + 1 if id(_fillers[-1]) - last == size else 0
            last = id(_fillers[-1])


def _bytes_of(size: int) -> bytes:
    """Return an object that takes `size` bytes of the heap."""
    return bytes(size - sys.getsizeof(b""))


def merge_mappings() -> int:
    """Give neighbouring mappings of a library the same mode, so that the kernel makes them one.

    Data that may only be read becomes executable, or writable again as it was when the library was
    relocated. SECURITY: this is the address space of guests that run any code they like anyway.
    """
    before = mappings()
    for mapping, other in itertools.pairwise(before):
        if mapping.file[0] == "0" or not mapping.goes_on_in(other):
            continue
        modes = {mapping.mode, other.mode}
        reading = mapping if mapping.mode == "r--p" else other
        if modes == {"r--p", "r-xp"}:
            _protect(reading, mmap.PROT_READ | mmap.PROT_EXEC)
        elif modes == {"r--p", "rw-p"}:
            _protect(reading, mmap.PROT_READ | mmap.PROT_WRITE)
    return len(before) - len(mappings())


def _protect(mapping: Mapping, mode: int) -> None:
    _libc.mprotect(mapping.start, mapping.end - mapping.start, mode)  # if it fails, it stays apart


def collapse_heaps() -> int:
    """Collapse private heaps into huge pages, which makes forks cheaper; return how many."""
    heaps = [
        mapping
        for mapping in mappings()
        if mapping.mode == "rw-p" and mapping.file.split()[2:] in ([], ["[heap]"])
    ]
    starts = [
        at
        for heap in heaps
        for at in range(-(-heap.start // _HUGE) * _HUGE, heap.end - _HUGE + 1, _HUGE)
    ]
    with open("/proc/self/pagemap", "rb", buffering=0) as pages:
        return sum(
            _make_writable(at, pages) and _libc.madvise(at, _HUGE, _MADV_COLLAPSE) == 0
            for at in starts
        )


def _make_writable(start: int, pages: BinaryIO) -> bool:
    """Write to the first page in memory of the huge page at `start`; return whether there is one.

    An import that forks leaves all pages write-protected, and the kernel collapses none of them
    then. Of a huge page that no one has used, nothing is to be made.
    """
    pages.seek(start // mmap.PAGESIZE * _ENTRY)
    entries = array.array("Q", pages.read(_HUGE // mmap.PAGESIZE * _ENTRY))
    used = next((number for number, entry in enumerate(entries) if entry & _PRESENT), None)
    if used is None:
        return False
    byte = ctypes.c_char.from_address(start + used * mmap.PAGESIZE)
    byte.value = byte.value
    return True


def mappings() -> list[Mapping]:
    """Return what /proc/self/maps says."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as lines:
        return [_mapping(line) for line in lines]


def _mapping(line: str) -> Mapping:
    span, mode, offset, device, inode, *path = line.split(None, 5)
    start, _, end = span.partition("-")
    file = " ".join([inode, device, *path]).strip()
    return Mapping(int(start, 16), int(end, 16), mode, int(offset, 16), file)
