"""The tools and resources of the MCP server: each method is one of them.

SECURITY: a client sends code for a sandbox, paths inside one, or texts; none of it names a file or
program of the host.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import mimetypes
from typing import TYPE_CHECKING

from atoll.extras import hint
from atoll.integrations.mcp_content import (
    cell_content,
    command_content,
    image_content,
    text_content,
)

try:
    from mcp.server.mcpserver import Context  # noqa: TC002 - the SDK reads annotations
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import CallToolResult
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
except ImportError as exc:
    raise ImportError(f"atoll.integrations.mcp_toolset needs the MCP SDK. {hint('mcp')}") from exc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atoll.integrations.mcp_sessions import Report, Session, Sessions

    Ask = Callable[[str, str, Callable[[str], None]], Awaitable[str]]
    """Takes a question, a text to answer it from, and a function that is called for each step."""

MAIN = "main"
MOST_FILES = 1000
MOST_HITS = 100
MOST_PEEK = 20_000


class Tools:
    """The tools; their docstrings are the descriptions that a model sees."""

    def __init__(self, sessions: Sessions, ask: Ask | None = None) -> None:
        self._sessions, self._ask = sessions, ask

    async def run_python(
        self, code: str, ctx: Context, session: str = MAIN, timeout_seconds: float | None = None
    ) -> CallToolResult:
        """Run Python code in a sandbox. Variables, imports and files stay for the next call.

        The value of the last expression is returned; figures come back as images.
        """
        found = await self._session(ctx, session)
        limit = None if timeout_seconds is None else timeout_seconds * 1000
        work = functools.partial(found.box.execute, code, timeout_ms=limit)
        return cell_content(found, await found.run(work, _reporter(ctx)))

    async def run_shell(
        self, command: str, ctx: Context, session: str = MAIN, timeout_seconds: float | None = None
    ) -> CallToolResult:
        """Run a shell command (sh) in the sandbox's working folder, which run_python shares."""
        found = await self._session(ctx, session)
        limit = None if timeout_seconds is None else timeout_seconds * 1000
        work = functools.partial(found.box.shell, command, timeout_ms=limit)
        return command_content(found, await found.run(work, _reporter(ctx)))

    async def list_files(self, ctx: Context, path: str = ".", session: str = MAIN) -> str:
        """List a folder of the sandbox: one line for each file, with its size."""
        found = await self._session(ctx, session)
        listed = await found.run(functools.partial(found.box.files.ls, path))
        lines = [f"{one.path}/" if one.is_dir else f"{one.path}  {one.size:,}" for one in listed]
        cut = listed.truncated or len(lines) > MOST_FILES
        return "\n".join([*lines[:MOST_FILES], *(["..."] if cut else [])]) or "(no files)"

    async def read_file(self, path: str, ctx: Context, session: str = MAIN) -> CallToolResult:
        """Read a file of the sandbox: text, or an image. Long texts are shortened."""
        found = await self._session(ctx, session)
        data = await _download(found, path)
        kind = mimetypes.guess_type(path)[0] or ""
        if kind in ("image/png", "image/jpeg", "image/gif", "image/webp"):
            return CallToolResult(content=[image_content(data, kind)])
        return CallToolResult(content=[*text_content(found, data.decode("utf-8", "replace"))])

    async def write_file(
        self, path: str, content: str, ctx: Context, session: str = MAIN, base64_encoded: bool = False  # noqa: E501, FBT001, FBT002
    ) -> str:  # fmt: skip
        """Write a file of the sandbox, in place of one that is there. Bytes go as base64."""
        try:
            data = base64.b64decode(content, validate=True) if base64_encoded else content.encode()
        except ValueError as exc:
            raise ToolError(f"the content cannot be written: {exc}") from None
        found = await self._session(ctx, session)
        [done] = await found.run(lambda: found.box.files.upload([(path, data)]))
        if done.error is not None:
            raise ToolError(f"{path} cannot be written: {done.error}")
        return f"wrote {len(data):,} bytes to {path}"

    async def context_open(  # noqa: PLR0917 - the SDK passes them by name
        self,
        ctx: Context,
        name: str = "text",
        path: str | None = None,
        output: str | None = None,
        text: str | None = None,
        session: str = MAIN,
    ) -> str:
        """Open a long text for context_grep and context_peek, under a name.

        Give one of: `path`, a file of the sandbox; `output`, the number of a shortened output;
        `text` itself.
        """
        if sum(one is not None for one in (path, output, text)) != 1:
            raise ToolError("give exactly one of path, output and text")
        if text is None:
            found = await self._session(ctx, session)
            text = (await _download(found, path)).decode("utf-8", "replace") if path else (
                found.output(str(output)))  # fmt: skip
        index = self._sessions.open_context(_connection(ctx), name, text)
        lines = text.count("\n") + 1
        titles = [f"{one.start:,}: {one.title}" for one in index.sections()[:30]]
        return "\n".join([f"{name}: {index.length:,} characters in {lines:,} lines", *titles])

    async def context_grep(
        self, pattern: str, ctx: Context, name: str | None = None, ignore_case: bool = False  # noqa: FBT001, FBT002
    ) -> str:  # fmt: skip
        """Find the lines of an open text that match a regular expression, with their offsets.

        Without a name, it is the text that was opened last.
        """
        index = self._sessions.context(_connection(ctx), name)
        search = functools.partial(index.grep, pattern, most=MOST_HITS, ignore_case=ignore_case)
        found = await asyncio.to_thread(search)
        lines = [f"line {one.line} at {one.start}: {one.text}" for one in found.hits]
        more = [f"... {found.total:,} in all" + ("" if found.counted else ", or more")]
        return "\n".join(lines + more * found.more) or "nothing matches"

    async def context_peek(
        self, start: int, ctx: Context, length: int = 2000, name: str | None = None
    ) -> str:
        """Return up to 20,000 characters of an open text, from an offset on.

        Without a name, it is the text that was opened last.
        """
        index = self._sessions.context(_connection(ctx), name)
        return index.text(start, start + min(length, MOST_PEEK))

    async def fork(self, new: str, ctx: Context, session: str = MAIN) -> str:
        """Clone a session, with all its variables and files, as a new independent one."""
        await self._sessions.fork(_connection(ctx), session, new)
        return f"{new} is a copy of {session}"

    async def checkpoint(self, ctx: Context, session: str = MAIN) -> str:
        """Keep a session's variables and files as they are now; return a mark for rollback."""
        found = await self._session(ctx, session)
        return await found.run(found.box.checkpoint)

    async def rollback(self, mark: str, ctx: Context, session: str = MAIN) -> str:
        """Restore a session's variables and files to a checkpoint, which stays usable."""
        found = await self._session(ctx, session)
        await found.run(functools.partial(found.box.rollback, mark))
        return f"{session} is as it was at {mark}"

    async def list_sessions(self, ctx: Context) -> str:
        """List the open sessions."""
        return "\n".join(self._sessions.names(_connection(ctx))) or "(no session is open)"

    async def close_session(self, ctx: Context, session: str = MAIN) -> str:
        """End a session: its variables and files are lost."""
        await self._sessions.close(_connection(ctx), session)
        return f"{session} has ended"

    async def ask(self, question: str, ctx: Context, name: str | None = None) -> str:
        """Let a language model answer a question about an open text of any length.

        Without a name, it is the text that was opened last.
        """
        assert self._ask is not None
        index = self._sessions.context(_connection(ctx), name)
        steps = _Steps(ctx)
        reporting = asyncio.ensure_future(steps.report())
        try:
            return await self._ask(question, index.text(0, index.length), steps.queue.put_nowait)
        finally:
            reporting.cancel()

    async def file(self, session: str, path: str, ctx: Context) -> str | bytes:
        """Return a file for resources/read."""
        return _plain(await _download(await self._session(ctx, session), path))

    async def output(self, session: str, number: str, ctx: Context) -> str:
        """Return a long output for resources/read."""
        return (await self._session(ctx, session)).output(number)

    async def _session(self, ctx: Context, name: str) -> Session:
        return await self._sessions.get(_connection(ctx), name)


class _Steps:
    """Reports the steps of `ask` as progress."""

    def __init__(self, ctx: Context) -> None:
        self._ctx, self.queue = ctx, asyncio.Queue[str]()

    async def report(self) -> None:
        number = 0
        while True:
            line, number = await self.queue.get(), number + 1
            await self._ctx.report_progress(number, message=line[:200])


def _connection(ctx: Context) -> str:
    """Return the HTTP session of a call; "" on stdio, and for protocols without sessions.

    SECURITY: a protocol without handshake has no sessions, so a client could send any header.
    """
    if ctx.headers is None or ctx.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
        return ""
    return ctx.headers.get("mcp-session-id", "")


def _reporter(ctx: Context) -> Report:
    async def report(progress: float, line: str) -> None:
        await ctx.report_progress(progress, message=line)

    return report


async def _download(session: Session, path: str) -> bytes:
    [done] = await session.run(lambda: session.box.files.download([path]))
    if done.content is None:
        raise ToolError(f"{path} cannot be read: {done.error}")
    return done.content


def _plain(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
