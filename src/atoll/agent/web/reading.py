"""Converts a reply to text: HTML without its markup, PDF page by page, text unchanged."""

from __future__ import annotations

import asyncio
import os
from email.message import Message
from typing import TYPE_CHECKING

from atoll.agent.archive.archive import open_archive
from atoll.agent.archive.process import Process
from atoll.agent.archive.source import as_descriptor
from atoll.agent.archive.types import ArchiveLimits, decode
from atoll.errors import ArchiveError, WebError
from atoll.policy import MIB

if TYPE_CHECKING:
    from atoll.agent.web.fetcher import Reply

_HTML = {"text/html", "application/xhtml+xml"}
_TEXTS = frozenset(
    """
    application/json application/xml application/javascript application/x-ndjson
    application/yaml application/x-yaml application/toml application/sql
""".split()
)
# Some of Python's codecs take quadratic time, such as punycode; these do not.
_CHARSETS = {
    *"""
    ascii us-ascii utf-8 utf8 utf-16 utf-16le utf-16be latin-1 latin1 shift_jis euc-jp euc-kr
    gb2312 gbk gb18030 big5 koi8-r koi8-u
""".split(),
    *(f"iso-8859-{part}" for part in (*range(1, 12), *range(13, 17))),
    *(f"windows-{page}" for page in range(1250, 1259)),
}
_MEMORY = 1024 * MIB

Read = tuple[str, str, bool]
"""Title, text, whether it was cut."""


async def read(reply: Reply, content_type: str, *, seconds: float, most: int) -> Read:
    """Return up to `most` bytes of a reply's text; WebError if its type cannot be read."""
    kind, charset = _parsed(content_type)
    if kind in _HTML:
        return await _html(reply.body, charset, seconds, most)
    if kind == "application/pdf":
        return await _pdf(reply, seconds, most)
    if not (kind.startswith("text/") or kind in _TEXTS or kind.endswith(("+json", "+xml"))):
        shown = kind[:100] or "of no declared type"
        raise WebError(f"the page is {shown}: only HTML, text, JSON, XML and PDF are read")
    return "", _decoded(reply.body, charset), False


def _parsed(content_type: str) -> tuple[str, str]:
    message = Message()
    message["content-type"] = content_type.replace("\r", " ").replace("\n", " ")[:500]
    kind = message.get_content_type() if content_type.strip() else ""
    charset = message.get_param("charset", "")
    name = charset.lower().strip() if isinstance(charset, str) else ""
    return kind, name if name in _CHARSETS else ""


def _decoded(data: bytes, charset: str) -> str:
    return data.decode(charset, "replace") if charset else decode(data)[0]


async def _html(data: bytes, charset: str, seconds: float, most: int) -> Read:
    """Extract the text in another process: a hostile page might take over the C library."""
    limits = ArchiveLimits(max_seconds=seconds)
    process = Process("atoll.agent.web.html", memory=_MEMORY, seconds=seconds, most=most)
    fd = as_descriptor(data, limits)
    try:
        return await asyncio.to_thread(_ask, process, fd, charset, most)
    except ArchiveError as exc:
        raise WebError(f"the page cannot be read: {exc}") from None
    finally:
        process.close()
        os.close(fd)


def _ask(process: Process, fd: int, charset: str, most: int) -> Read:
    process.start((fd,), charset=charset)
    header, text = process.ask("text", fd=fd, charset=charset, most=most)
    return str(header["title"]), text.decode("utf-8", "replace"), bool(header["cut"])


async def _pdf(reply: Reply, seconds: float, most: int) -> Read:
    if reply.truncated:
        raise WebError(f"the PDF is cut off after {len(reply.body)} bytes, as max_bytes says")
    try:
        return await asyncio.to_thread(_pages, reply.body, seconds, most)
    except ArchiveError as exc:
        raise WebError(f"the PDF cannot be read: {exc}") from None


def _pages(data: bytes, seconds: float, most: int) -> Read:
    texts, size = [], 0
    with open_archive(data, "page.pdf", ArchiveLimits(max_seconds=seconds)) as archive:
        if archive.kind != "pdf":
            raise ArchiveError(f"it is a {archive.kind}")
        for page in archive.members:
            texts.append(archive.text(page.name))
            size += len(texts[-1])
            if size > most:
                break
    return "", "\n\n".join(texts)[:most], size > most
