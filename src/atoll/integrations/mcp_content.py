"""Renders results of cells and commands as content of MCP tool results."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from atoll.extras import hint
from atoll.types import stderr_with_error

try:
    from mcp.types import CallToolResult, ImageContent, ResourceLink, TextContent
except ImportError as exc:
    raise ImportError(f"atoll.integrations.mcp_content needs the MCP SDK. {hint('mcp')}") from exc

if TYPE_CHECKING:
    from atoll.integrations.mcp_sessions import Session
    from atoll.types import ExecuteResponse, SandboxResult


def cell_content(session: Session, result: SandboxResult) -> CallToolResult:
    """Return a cell's result as content: output, value, images, error."""
    images = [one for one in result.displays if one.media_type in ("image/png", "image/jpeg")]
    value = None if images else result.value_repr
    error = None if result.success else result.error
    stderr = stderr_with_error(result.stderr, error, result.kind)
    parts = [result.stdout, stderr, value, _lost(result)]
    content: list[Any] = list(
        text_content(session, _joined(parts) or ("" if images else "(no output)"))
    )
    content += [image_content(one.data, one.media_type) for one in images]
    facts = {
        "outcome": result.kind.value,
        "isolation": str(result.isolation),
        "truncated": result.truncated,
        "state_lost": result.state_lost,
        "files": list(result.files),
    }
    return CallToolResult(content=content, structured_content=facts, is_error=not result.success)


def _lost(result: SandboxResult) -> str:
    return "The session's variables are lost." if result.state_lost else ""


def command_content(session: Session, done: ExecuteResponse) -> CallToolResult:
    """Return a command's result as content: output and exit code."""
    text = _joined([done.output, done.error]) or "(no output)"
    isolation = str(session.box.isolation)
    facts = {"exit_code": done.exit_code, "truncated": done.truncated, "isolation": isolation}
    code = f"exit code {done.exit_code}" if done.exit_code else ""
    content = text_content(session, _joined([text, code]))
    return CallToolResult(
        content=list(content), structured_content=facts, is_error=done.exit_code != 0
    )


def _joined(parts: list[str | None]) -> str:
    return "\n".join(part.rstrip("\n") for part in parts if part)


def text_content(session: Session, text: str) -> list[TextContent | ResourceLink]:
    """Return a text; a long one shortened, with a link to the whole."""
    shown, number = session.shorten(text)
    if number is None:
        return [TextContent(text=shown)] if shown else []
    uri = f"atoll://{session.name}/outputs/{number}"
    note = f"[{len(text):,} characters; all of them: context_open(output={number!r}), or {uri}]"
    link = ResourceLink(uri=uri, name=f"output {number}", mime_type="text/plain")
    return [TextContent(text=f"{shown}\n{note}"), link]


def image_content(data: bytes, media_type: str) -> ImageContent:
    """Return an image as content."""
    return ImageContent(data=base64.b64encode(data).decode(), mime_type=media_type)
