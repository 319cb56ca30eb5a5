"""Bodies of forms, read as they come: a part is handed on while the rest is still on its way."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from email.message import Message
from typing import TYPE_CHECKING
from urllib.parse import unquote

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser

from atoll.service.http.problems import Problem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MAX_FIELD_BYTES = 64 << 10
MAX_HEADER_BYTES = 16 << 10
_BOUNDARY = re.compile(r"[^\x00-\x1f\"]{1,200}\Z")


@dataclass(slots=True)
class Part:
    """One field or file of a form; its bytes are read before the next part is."""

    name: str
    filename: str | None
    media_type: str
    _form: Form = field(repr=False)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield its bytes as they come."""
        while (piece := await self._form.next_piece()) is not None:
            yield piece

    async def text(self) -> str:
        """Return a field's text; 413 if it is long."""
        result = b""
        async for piece in self.pieces():
            result += piece
            if len(result) > MAX_FIELD_BYTES:
                raise Problem(413, "too_large", f"a field has at most {MAX_FIELD_BYTES:,} bytes")
        return result.decode("utf-8", "replace")


class Form:
    """Reads a form; 400 unless the body is multipart/form-data."""

    def __init__(self, content_type: str, body: AsyncIterator[bytes]) -> None:
        self._body = body
        self._headers: list[tuple[bytes, bytes]] = []
        self._header, self._value = b"", b""
        self._events: deque[Part | bytes | None] = deque()
        """Parts that begin, their bytes, and None at the end of each."""
        self._size = 0
        self._parser = MultipartParser(_boundary(content_type), self._callbacks())  # type: ignore[arg-type]
        self._over = False

    async def parts(self) -> AsyncIterator[Part]:
        """Yield the parts in order; unread bytes of a part are skipped."""
        while (event := await self._next()) is not _END:
            if isinstance(event, Part):
                yield event

    async def next_piece(self) -> bytes | None:
        """Return the next bytes of the part that is read; None at its end."""
        event = await self._next()
        if event is _END:
            raise Problem(400, "invalid", "the form ends before a part of it does")
        return event if isinstance(event, bytes) else None

    async def _next(self) -> Part | bytes | object | None:
        while not self._events:
            if self._over:
                return _END
            piece = await anext(self._body, None)
            try:
                if piece is None:
                    self._over = True
                    self._parser.finalize()
                else:
                    self._parser.write(piece)
            except MultipartParseError as exc:
                raise Problem(400, "invalid", f"the form cannot be read: {exc}") from None
        return self._events.popleft()

    def _callbacks(self) -> dict[str, object]:
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._on_name,
            "on_header_value": self._on_value,
            "on_header_end": self._on_header,
            "on_headers_finished": self._on_part,
            "on_part_data": lambda data, start, end: self._events.append(bytes(data[start:end])),
            "on_part_end": lambda: self._events.append(None),
        }

    def _begin(self) -> None:
        self._headers, self._size = [], 0

    def _on_name(self, data: bytes, start: int, end: int) -> None:
        self._header += self._counted(data[start:end])

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += self._counted(data[start:end])

    def _counted(self, part: bytes) -> bytes:
        self._size += len(part)
        if self._size > MAX_HEADER_BYTES:
            raise Problem(400, "invalid", "the headers of a part are too long")
        return part

    def _on_header(self) -> None:
        self._headers.append((self._header.lower(), self._value))
        self._header = self._value = b""

    def _on_part(self) -> None:
        headers = dict(self._headers)
        name, filename = _names(headers.get(b"content-disposition", b"").decode("utf-8", "replace"))
        media_type = headers.get(b"content-type", b"").decode("latin-1")
        self._events.append(Part(name, filename, media_type, self))


_END = object()


def _boundary(content_type: str) -> bytes:
    message = Message()
    message["content-type"] = content_type
    boundary = str(message.get_param("boundary") or "")
    if message.get_content_type() != "multipart/form-data" or not _BOUNDARY.match(boundary):
        raise Problem(400, "invalid", "the body has to be a form: multipart/form-data")
    return boundary.encode("latin-1", "replace")


_PARAMETER = re.compile(r';\s*([\w*]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;\s]+))')


def _names(disposition: str) -> tuple[str, str | None]:
    """Return the field's name and the file's; browsers and undici write names as UTF-8."""
    parameters = {
        match[1].lower(): re.sub(r"\\(.)", r"\1", match[2]) if match[2] is not None else match[3]
        for match in _PARAMETER.finditer(disposition)
    }
    extended = parameters.get("filename*", "")
    if extended.lower().startswith("utf-8''"):
        return parameters.get("name", ""), unquote(extended[7:])
    return parameters.get("name", ""), parameters.get("filename")
