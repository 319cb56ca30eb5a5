"""HTML for notebooks: results, answers and listings as `_repr_html_` returns them.

SECURITY: text of a guest or a model is escaped. HTML that a guest made is shown in an iframe that
runs no script, has an origin of its own and loads nothing (sandbox attribute and a content
security policy); an SVG is shown as an image, which runs no script either.
"""

from __future__ import annotations

import base64
import html
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_TEXT = 20_000
MAX_ROWS = 200
MAX_IMAGE_BYTES = 4 << 20
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_PRE = "margin:0.2em 0;white-space:pre-wrap;overflow-wrap:anywhere"
_NOT_SHOWN = re.compile(
    r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)


def block(*parts: str) -> str:
    """Return the parts as one block; empty parts are left out."""
    return f'<div class="atoll">{"".join(parts)}</div>'


def text(content: str, colour: str = "") -> str:
    """Return text as it is, escaped and cut; nothing for an empty one."""
    if not content:
        return ""
    style = f"{_PRE};color:{colour}" if colour else _PRE
    return f'<pre style="{style}">{escape(content)}</pre>'


def escape(content: str) -> str:
    """Return text for HTML: escaped, cut, without control characters and terminal colours."""
    if len(content) > MAX_TEXT:
        content = f"{content[:MAX_TEXT]}\n... {len(content) - MAX_TEXT:,} characters more"
    shown = _NOT_SHOWN.sub("", content).encode("utf-8", "replace").decode("utf-8")
    return html.escape(shown, quote=True)


def note(content: str) -> str:
    """Return a line of small print."""
    return f'<div style="font-size:85%;opacity:0.7">{escape(content)}</div>'


def display(media_type: str, data: bytes) -> str:
    """Return a display of a guest's: an image, HTML in a sandboxed iframe, or escaped text."""
    if media_type == "image/png" and data.startswith(PNG_SIGNATURE):
        return _image(media_type, data)
    if media_type == "image/svg+xml":
        return _image(media_type, data)
    content = data.decode("utf-8", "replace")
    return _frame(content) if media_type == "text/html" else text(content)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows as a table, the first MAX_ROWS of them."""
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = [
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in list(rows)[:MAX_ROWS]
    ]
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def items(rows: Iterable[str]) -> str:
    """Return texts as a list; "" without any."""
    result = "".join(f"<li>{escape(row)}</li>" for row in rows)
    return f"<ul>{result}</ul>" if result else ""


def _image(media_type: str, data: bytes) -> str:
    if len(data) > MAX_IMAGE_BYTES:
        return note(f"an image of {len(data):,} bytes, too large to show: see `displays`")
    encoded = base64.b64encode(data).decode("ascii")
    return f'<img style="max-width:100%" src="data:{media_type};base64,{encoded}">'


def _frame(content: str) -> str:
    shown = _NOT_SHOWN.sub("", content).encode("utf-8", "replace").decode("utf-8")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    inner = html.escape(policy + shown, quote=True)
    style = "width:100%;min-height:12em;border:0;resize:vertical;background:white"
    start = f'<iframe sandbox="" referrerpolicy="no-referrer" style="{style}"'
    return f'{start} srcdoc="{inner}"></iframe>'


def short(content: object, most: int = 80) -> str:
    """Return a repr of at most so many characters, for another repr."""
    shown = repr(content[: most + 1] if isinstance(content, str | bytes) else content)
    return shown if len(shown) <= most else shown[:most] + "..."
