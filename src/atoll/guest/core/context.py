"""The context arrives: a sealed memory file becomes a real `str` without being copied.

The host writes only the characters (1, 2 or 4 bytes each). Here they are mapped read-only, right
behind one private page that ends in a str header: the header of a live str of the same kind,
read off this very interpreter, with length, hash and reference count set. Whatever does not
look as expected means the plain way: read and decode.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CODECS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}
_SAMPLE_LENGTH = 7
_TYPE_AT, _LENGTH_AT, _HASH_AT = 8, 16, 24
_PROT_NONE, _PROT_READ, _PROT_WRITE = 0, 1, 2
_MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS = 2, 16, 32
MAPPED: list[int] = []
"""Sizes of mapped contexts, which do not count as the guest's memory."""


class UnknownLayoutError(Exception):
    """A str is not laid out as expected here."""


def load(fd: int, width: int, length: int, ascii_only: bool) -> tuple[str, bool]:
    """Return the text in the memory file `fd`, and whether it is shared, not copied."""
    try:
        return _map_text(fd, width, length, ascii_only), True
    except (UnknownLayoutError, ImportError, OSError, AttributeError):
        return _read_text(fd, width, length), False
    finally:
        os.close(fd)


def _read_text(fd: int, width: int, length: int) -> str:
    parts, at, size = [], 0, length * width
    while at < size:
        part = read_at(fd, min(size - at, 1 << 24), at)
        if not part:
            raise EOFError("the context file is shorter than announced")
        parts.append(part)
        at += len(part)
    return b"".join(parts).decode(CODECS[width], "surrogatepass")


def read_at(fd: int, size: int, at: int) -> bytes:
    """Return bytes of a file, at most `size`, from the offset `at` on."""
    if sys.platform == "win32":
        os.lseek(fd, at, os.SEEK_SET)
        data = os.read(fd, size)
    else:
        data = os.pread(fd, size, at)
    return data


def _map_text(fd: int, width: int, length: int, ascii_only: bool) -> str:
    import ctypes
    import mmap

    if length == 0:
        return ""
    header = _header(width, length, ascii_only)
    page = mmap.PAGESIZE
    size = (length + 1) * width  # the host left room for the terminating NUL
    anonymous = _MAP_PRIVATE | _MAP_ANONYMOUS
    base = _mmap(None, page + size, _PROT_NONE, anonymous, -1)  # a place for both, side by side
    _mmap(base, page, _PROT_READ | _PROT_WRITE, anonymous | _MAP_FIXED, -1)
    _mmap(base + page, size, _PROT_READ, _MAP_PRIVATE | _MAP_FIXED, fd)
    MAPPED.append(size)
    at = base + page - len(header)
    ctypes.memmove(at, header, len(header))
    text: str = ctypes.cast(at, ctypes.py_object).value
    return text


def _header(width: int, length: int, ascii_only: bool) -> bytes:
    """The bytes in front of a str's characters, for a str of this kind and length."""
    import ctypes

    known = sys.platform == "linux" and sys.implementation.name == "cpython"
    if not known or ctypes.sizeof(ctypes.c_void_p) != 8:
        raise UnknownLayoutError
    sample = _sample(width, ascii_only)
    size = sys.getsizeof(sample) - (_SAMPLE_LENGTH + 1) * width
    digest = hash(sample)  # kept in the header, where it shows which field is the hash
    raw = ctypes.string_at(id(sample), size + (_SAMPLE_LENGTH + 1) * width)
    characters = sample.encode(CODECS[width], "surrogatepass") + bytes(width)
    if raw[size:] != characters or (
        _field(raw, _TYPE_AT) != id(str)
        or _field(raw, _LENGTH_AT) != _SAMPLE_LENGTH
        or _field(raw, _HASH_AT) != digest
    ):
        raise UnknownLayoutError
    return b"".join(
        (
            _immortal_count(),
            raw[_TYPE_AT:_LENGTH_AT],
            length.to_bytes(8, "little"),
            (-1).to_bytes(8, "little", signed=True),
            raw[_HASH_AT + 8 : size],
        )
    )


def _sample(width: int, ascii_only: bool) -> str:
    character = "a" if ascii_only else {1: "\xe9", 2: "\u0101", 4: "\U00010348"}[width]
    return "".join([character] * _SAMPLE_LENGTH)  # joined at run time: never interned or cached


def _immortal_count() -> bytes:
    """A reference count that never reaches zero, as this version writes one."""
    import ctypes

    if sys.version_info >= (3, 12):  # None is immortal there: take what it has
        return ctypes.string_at(id(None), 8)
    return (1 << 40).to_bytes(8, "little")


def _field(raw: bytes, at: int) -> int:
    return int.from_bytes(raw[at : at + 8], "little", signed=at == _HASH_AT)


def _mmap(at: int | None, size: int, prot: int, flags: int, fd: int) -> int:
    import ctypes

    call: Any = ctypes.CDLL(None, use_errno=True).mmap
    call.restype = ctypes.c_void_p
    pointer, number, word = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
    call.argtypes = (pointer, word, number, number, number, ctypes.c_long)
    address = call(at, size, prot, flags, fd, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap of the context failed")
    return int(address)
