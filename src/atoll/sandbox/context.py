"""The context on the host: one sealed memory file, which sandboxes map instead of copying it.

Only the characters are in the file (1, 2 or 4 bytes each, as CPython keeps them), so a guest of
any Python version can put its own header in front; see guest/core/context.py for the other half.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
import warnings
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from atoll.errors import ConfigError
from atoll.guest.core import context as guest_context
from atoll.guest.shared import values
from atoll.rpc import blobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from atoll.guest.shared.messages import Json

INLINE_LIMIT = 1 << 16
_LONGEST_PATH = 255
_CHUNK = 1 << 24
_CACHED_CHUNK = 1 << 20
_WIDTHS = (1, 2, 4)

_FOUR_BYTES = re.compile("[\U00010000-\U0010ffff]")
_TWO_BYTES = re.compile("[^\x00-\xff]")

_shared: weakref.WeakValueDictionary[int, Context] = weakref.WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class TextShape:
    """How many characters a UTF-8 file has, and how many bytes CPython keeps each with."""

    length: int
    width: int
    ascii_only: bool

    @property
    def size(self) -> int:
        """Bytes of all characters."""
        return self.length * self.width

    @classmethod
    def of(cls, path: Path) -> TextShape:
        """Measure a file, a part at a time; UnicodeDecodeError if it is not UTF-8."""
        length, width, ascii_only = 0, 1, True
        with path.open("rb") as file:
            for text in _decoded(file):
                length += len(text)
                ascii_only = ascii_only and text.isascii()
                width = max(width, _width_of(text))
        return cls(length, width, ascii_only)


class Context:
    """Text or data that sandboxes share. Freed when the last sandbox that uses it has ended."""

    def __init__(
        self, *, fd: int, width: int, length: int, ascii_only: bool, json_text: bool
    ) -> None:
        self.fd, self.width, self.length = fd, width, length
        self._ascii, self._json = ascii_only, json_text
        self._value: Any = None
        self._has_value = False
        self.files: tuple[tuple[int, str], ...] = ()
        """Of a text put together from files: where each begins, and its path, in order."""
        self.tie: object = None
        """What lives as long as any handle on the memory file: an owner may count by it."""
        self._finalizer = weakref.finalize(self, os.close, fd)

    @classmethod
    def from_text(cls, text: str) -> Context:
        """Make a context of `text`; this copies it once."""
        return cls._from_characters(text, json_text=False).keep(text)

    @classmethod
    def from_value(cls, value: Any) -> Context:
        """Make a context of plain data: JSON types, tuples, sets, bytes, dates."""
        return cls.from_json(_as_json(value), value)

    @classmethod
    def from_json(cls, text: str, value: Any) -> Context:
        """Make a context of `value`, whose JSON form `values.encode` has made already."""
        return cls._from_characters(text, json_text=True).keep(value)

    @classmethod
    def adopt(cls, described: Mapping[str, Any], fd: int) -> Context:
        """Return the context that another process passed; ConfigError if it is not as described.

        SECURITY: what could change or shrink while it is mapped is refused. `fd` is closed then.
        """
        try:
            context = cls(
                fd=fd,
                width=_checked(described["width"], lambda width: width in _WIDTHS),
                length=_checked(described["length"], lambda length: 0 <= length < 1 << 48),
                ascii_only=_checked_flag(described["ascii"]),
                json_text=_checked_flag(described["json"]),
            )
        except (KeyError, TypeError, ValueError):
            os.close(fd)
            raise ConfigError("invalid context description") from None
        fitting = blobs.is_sealed(fd) and os.fstat(fd).st_size >= context.size
        if not fitting or (described["ascii"] and context.width != 1):
            context.close()
            raise ConfigError("the context is not a sealed memory file of the announced size")
        return context

    @classmethod
    def from_file(cls, path: str | Path, encoding: str = "utf-8") -> Context:
        """Make a context of a text file; an ASCII file is copied without being decoded."""
        with Path(path).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0 or not _is_ascii(file.fileno()):  # files in /proc say that they are empty
                return cls.from_text(Path(path).read_text(encoding=encoding))
            fd = _memory_file()
            _copy(file.fileno(), fd, size)
        return cls(fd=_seal(fd, size, 1), width=1, length=size, ascii_only=True, json_text=False)

    @classmethod
    def from_utf8(cls, path: Path, shape: TextShape, *, json_text: bool = False) -> Context:
        """Make a context of a UTF-8 file, as it was measured, without ever holding all of it."""
        fd = _memory_file()
        try:
            with path.open("rb") as file:
                _write_decoded(fd, file, guest_context.CODECS[shape.width])
            _seal(fd, shape.size, shape.width)
        except BaseException:
            os.close(fd)
            raise
        return cls(
            fd=fd,
            width=shape.width,
            length=shape.length,
            ascii_only=shape.ascii_only,
            json_text=json_text,
        )

    @classmethod
    def _from_characters(cls, text: str, *, json_text: bool) -> Context:
        fd = _memory_file()
        width = _write_characters(fd, text)
        ascii_only = text.isascii()
        _seal(fd, len(text) * width, width)
        return cls(fd=fd, width=width, length=len(text), ascii_only=ascii_only, json_text=json_text)

    def keep(self, value: Any) -> Context:
        """Remember the value that this was made of, and return self."""
        self._value, self._has_value = value, True
        return self

    @property
    def value(self) -> Any:
        """The text or data itself; text that came from a file is mapped, not copied."""
        if not self._has_value:
            fd = os.dup(self.fd)
            text, _ = guest_context.load(fd, self.width, self.length, self._ascii)
            self._value, self._has_value = text, True
        return self._value

    @property
    def resident(self) -> memoryview | None:
        """The bytes of an ASCII text that was kept, where they lie: nothing to map, or to copy."""
        text = self._value
        return _utf8_view(text) if self._ascii and isinstance(text, str) and text else None

    @property
    def size(self) -> int:
        """Bytes of the mapping, the terminating NUL included."""
        return (self.length + 1) * self.width

    def to_json(self) -> bytes:
        """Return the text or data as JSON, read from the memory file."""
        size = self.length * self.width
        read = guest_context.read_at
        data = b"".join(read(self.fd, _CHUNK, at) for at in range(0, size, _CHUNK))
        text = data[:size].decode(guest_context.CODECS[self.width], "surrogatepass")
        return (text if self._json else json.dumps(text)).encode("utf-8", "surrogatepass")

    def describe(self) -> Json:
        """Return how to read the memory file, for the guest that gets its descriptor."""
        return {
            "width": self.width,
            "length": self.length,
            "ascii": self._ascii,
            "json": self._json,
        }

    def dup(self) -> Context:
        """Return a second handle on the memory file; each is closed on its own."""
        twin = Context(
            fd=os.dup(self.fd),
            width=self.width,
            length=self.length,
            ascii_only=self._ascii,
            json_text=self._json,
        )
        twin.files, twin.tie = self.files, self.tie
        return twin.keep(self._value) if self._has_value else twin

    def close(self) -> None:
        """Close the memory file; sandboxes that have mapped it keep their mapping."""
        self.tie = None
        self._finalizer()


def share(value: Any) -> Context | None:
    """Return a Context for what a caller gave as context; None if it is small enough to be sent.

    A path stands for the text of its file. ConfigError if it is neither text nor plain data.
    """
    if isinstance(value, Context):
        return value
    if isinstance(value, os.PathLike):
        return from_path(value)
    if isinstance(value, str):
        return share_text(value) if len(value) > INLINE_LIMIT else None
    text = _as_json(value)
    return Context.from_json(text, value) if len(text) > INLINE_LIMIT else None


def warn_of_path(value: Any, *, above: int = 1) -> None:
    """Warn the caller of a public function if the text that it gave as context names a file.

    `above` is how many calls above this one the public function is.
    SECURITY: not if Atoll itself is the caller: a service's text is a tenant's, and is not looked
    up on this machine.
    """
    caller = str(sys._getframe(1 + above).f_globals.get("__name__"))  # noqa: SLF001
    is_short = isinstance(value, str) and 0 < len(value) <= _LONGEST_PATH and "\n" not in value
    if not is_short or caller.partition(".")[0] == __name__.partition(".")[0]:
        return
    kind = _kind_of_path(value)
    if kind:
        text = f"the context is the text {value!r} itself, {len(value)} characters. To read the"
        warnings.warn(f"{text} {kind} of that name, give Path({value!r})", stacklevel=2 + above)


def _kind_of_path(text: str) -> str:
    """Return "folder" or "file" if a text is the path of one, else ""."""
    try:
        path = Path(text).expanduser()
        return "folder" if path.is_dir() else "file" if path.exists() else ""
    except (OSError, ValueError, RuntimeError):
        return ""


def from_path(path: os.PathLike[str]) -> Context:
    """Return a Context of a text file; ConfigError says why it cannot be read."""
    file = Path(path).expanduser()
    try:
        return Context.from_file(file)
    except IsADirectoryError:
        text = f"the context {file} is a folder: give it as documents={str(file)!r}"
        raise ConfigError(f"{text} to a REPLEnvironment, or give one file") from None
    except OSError as exc:
        raise ConfigError(
            f"the context file {str(file)!r} cannot be read: {exc.strerror}"
        ) from None
    except UnicodeDecodeError as exc:
        text = f"the context file {str(file)!r} is not UTF-8 text: {exc.reason} at {exc.start:,}"
        raise ConfigError(f"{text}. Decode it with Context.from_file(path, encoding)") from None


def share_text(text: str) -> Context:
    """Return the Context of a str; all sandboxes that are given that str share it."""
    context = _shared.get(id(text))
    if context is None:  # an entry keeps its text alive, so the id cannot be another's
        context = _shared[id(text)] = Context.from_text(text)
    return context


def _as_json(value: Any) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        raise ConfigError("a context must be text or plain data, not bytes: decode it first")
    try:
        return json.dumps(values.encode(value, 1 << 40, 1 << 50, strict=True))
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"a context must be text or plain data: {exc}") from None


def memory_file(view: memoryview) -> int:
    """Return a sealed memory file of these bytes, which end with the terminating NUL."""
    fd = _memory_file()
    _write_all(fd, view)
    blobs.seal(fd)
    return fd


def _memory_file() -> int:
    return blobs.create("atoll-context")


def _seal(fd: int, size: int, width: int) -> int:
    os.ftruncate(fd, size + width)  # the terminating NUL
    blobs.seal(fd)
    return fd


def _write_characters(fd: int, text: str) -> int:
    """Write the characters at the width that CPython would keep them at; return it."""
    if text.isascii():
        _write_all(fd, _utf8_view(text))
        return 1
    for width, codec in guest_context.CODECS.items():
        os.lseek(fd, 0, os.SEEK_SET)
        if _write_encoded(fd, text, width, codec):
            os.ftruncate(fd, len(text) * width)
            return width
    raise AssertionError("every str fits 4 bytes a character")


def _write_encoded(fd: int, text: str, width: int, codec: str) -> bool:
    for start in range(0, len(text), _CHUNK):
        part = text[start : start + _CHUNK]
        try:
            data = part.encode(codec, "surrogatepass" if width > 1 else "strict")
        except UnicodeEncodeError:
            return False
        if len(data) != len(part) * width:  # UTF-16 had to use pairs
            return False
        _write_all(fd, memoryview(data))
    return True


def _width_of(text: str) -> int:
    if text.isascii():
        return 1
    return 4 if _FOUR_BYTES.search(text) else 2 if _TWO_BYTES.search(text) else 1


def _write_decoded(fd: int, file: BinaryIO, codec: str) -> None:
    errors = "strict" if codec == guest_context.CODECS[1] else "surrogatepass"
    for text in _decoded(file):
        _write_all(fd, memoryview(text.encode(codec, errors)))


def _decoded(file: BinaryIO) -> Iterator[str]:
    """Yield the text of a UTF-8 file in parts; a lone surrogate is a character.

    Python's incremental decoder refuses a surrogate of which the last byte has not been read.
    """
    rest = b""
    while data := file.read(_CACHED_CHUNK):
        data = rest + data
        cut = next((len(data) - n for n in (1, 2, 3) if data[-n:][:1] >= b"\xc0"), len(data))
        rest = data[cut:]
        yield data[:cut].decode("utf-8", "surrogatepass")
    yield rest.decode("utf-8", "surrogatepass")


def _utf8_view(text: str) -> memoryview:
    """Return the bytes of an ASCII str without a copy: its UTF-8 form is what it holds."""
    size = ctypes.c_ssize_t()
    as_utf8 = ctypes.pythonapi.PyUnicode_AsUTF8AndSize
    as_utf8.restype = ctypes.c_void_p
    as_utf8.argtypes = (ctypes.py_object, ctypes.POINTER(ctypes.c_ssize_t))
    address = as_utf8(text, ctypes.byref(size))
    return memoryview((ctypes.c_char * size.value).from_address(address)).cast("B")


def _write_all(fd: int, view: memoryview) -> None:
    while view:
        view = view[os.write(fd, view[:_CHUNK]) :]


def _is_ascii(fd: int) -> bool:
    at = 0
    while part := guest_context.read_at(fd, _CACHED_CHUNK, at):
        if not part.isascii():
            return False
        at += len(part)
    return True


def _copy(source: int, target: int, size: int) -> None:
    left = size
    while left:
        if sys.platform == "linux":
            sent = os.sendfile(target, source, size - left, left)
        else:
            sent = os.write(target, guest_context.read_at(source, min(left, _CHUNK), size - left))
        if not sent:
            raise ConfigError("the context file became shorter while it was read")
        left -= sent


def _checked(number: Any, fits: Callable[[int], bool]) -> int:
    if type(number) is not int or not fits(number):
        raise ValueError(number)
    return number


def _checked_flag(flag: Any) -> bool:
    if type(flag) is not bool:
        raise TypeError(flag)
    return flag
