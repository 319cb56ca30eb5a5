"""The program that extracts the text of one page with Resiliparse; runs with limits."""

from __future__ import annotations

import codecs
import os
from importlib import import_module
from typing import TYPE_CHECKING

from atoll.agent.archive.confined import serve
from atoll.errors import ArchiveError
from atoll.extras import hint

if TYPE_CHECKING:
    from atoll.agent.archive.confined import Reply

_LONGEST_TITLE = 500
_PIECE = 1 << 20
_DETECTED = (
    *"""
    utf-8 utf-16-le utf-16-be big5 euc-jp euc-kr gb18030 gbk iso2022-jp shift-jis koi8-r koi8-u
    cp866 cp874 mac-roman mac-cyrillic
""".split(),
    *(f"iso8859-{part}" for part in (*range(1, 12), *range(13, 17))),
    *(f"cp{page}" for page in range(1250, 1259)),
)
"""The charsets of HTML, by Python's names."""


def load(charset: str) -> None:
    """Import Resiliparse and the codecs that a page may have."""
    try:
        for name in ("extract.html2text", "parse.encoding", "parse.html"):
            import_module(f"resiliparse.{name}")  # behind the walls none can be imported
    except ImportError:
        raise ArchiveError(f"HTML needs Resiliparse. {hint('web')}") from None
    for codec in (charset,) if charset else _DETECTED:
        codecs.lookup(codec)


def text(fd: int, charset: str, most: int) -> Reply:
    """Return title and text (`most` bytes) of a page; its <head> names a missing charset."""
    from resiliparse.extract.html2text import extract_plain_text  # noqa: PLC0415 - an extra
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding  # noqa: PLC0415
    from resiliparse.parse.html import HTMLTree  # noqa: PLC0415

    data = _all(fd)
    encoding = charset or detect_encoding(data, from_html_meta=True) or "utf-8"
    tree = HTMLTree.parse(bytes_to_str(data, encoding))
    title = " ".join((tree.title or "").split())[:_LONGEST_TITLE]
    whole = extract_plain_text(tree, links=True).encode("utf-8", "replace")
    return {"title": title, "cut": len(whole) > most}, whole[:most]


def main() -> None:
    """Serve requests until the parent closes the connection."""
    serve({"text": text}, load)


def _all(fd: int) -> bytes:
    pieces, at = [], 0
    while piece := os.pread(fd, _PIECE, at):
        pieces.append(piece)
        at += len(piece)
    return b"".join(pieces)
