"""The tools and resources of the MCP server: each method is one of them.

SECURITY: a client sends code for a sandbox, paths inside one, or texts; none of it names a file or
program of the host.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import mimetypes
from typing import TYPE_CHECKING, Annotated, Any

from atoll.extras import hint
from atoll.integrations.mcp_outputs import (
    CellOutput,
    CommandOutput,
    Files,
    ListedFile,
    Mark,
    Match,
    Matches,
    OpenText,
    SessionHandle,
    SessionList,
    Written,
)
from atoll.integrations.mcp_requests import owner_of
from atoll.integrations.mcp_tasks import NOTES
from atoll.types import stderr_with_error

try:
    from mcp.server.mcpserver import Context  # noqa: TC002 - the SDK reads annotations
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import CallToolResult, ImageContent, ResourceLink, TextContent
except ImportError as exc:
    raise ImportError(f"atoll.integrations.mcp_toolset needs the MCP SDK. {hint('mcp')}") from exc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pydantic import BaseModel

    from atoll.integrations.mcp_requests import Request
    from atoll.integrations.mcp_sessions import Owner, Report, Session, Sessions
    from atoll.types import ExecuteResponse, SandboxResult

    Ask = Callable[[str, str, Callable[[str], None]], Awaitable[str]]
    """Takes a question, a text to answer it from, and a function that is called for each step."""
    Changed = Callable[[Request, Session], Awaitable[None]]
    """Is called after a call that may have changed a session's files."""

MAX_FILES = 1000
MAX_HITS = 100
MAX_PEEK = 20_000


class Tools:
    """The tools; their docstrings are the descriptions that a model sees."""

    def __init__(self, sessions: Sessions, changed: Changed, ask: Ask | None = None) -> None:
        self._sessions, self._changed, self._ask = sessions, changed, ask

    async def run_python(
        self,
        code: str,
        ctx: Context,
        session: str | None = None,
        timeout_seconds: float | None = None,
    ) -> Annotated[CallToolResult, CellOutput]:
        """Run Python code in a sandbox. Variables, imports and files stay in the session.

        The value of the last expression is returned; figures come back as images. Pass the
        session that a result names to go on in it.
        """
        chosen = await self._session(ctx, session)
        limit = None if timeout_seconds is None else timeout_seconds * 1000
        work = functools.partial(chosen.box.execute, code, timeout_ms=limit)
        result = cell_content(chosen, await chosen.run(work, _reporter(ctx)))
        return await self._ended(ctx, chosen, session, result)

    async def run_shell(
        self,
        command: str,
        ctx: Context,
        session: str | None = None,
        timeout_seconds: float | None = None,
    ) -> Annotated[CallToolResult, CommandOutput]:
        """Run a shell command (sh) in the sandbox's working folder, which run_python shares."""
        chosen = await self._session(ctx, session)
        limit = None if timeout_seconds is None else timeout_seconds * 1000
        work = functools.partial(chosen.box.shell, command, timeout_ms=limit)
        result = command_content(chosen, await chosen.run(work, _reporter(ctx)))
        return await self._ended(ctx, chosen, session, result)

    async def list_files(
        self, ctx: Context, path: str = ".", session: str | None = None
    ) -> Annotated[CallToolResult, Files]:
        """List a folder of the sandbox: one line for each file, with its size."""
        chosen = await self._session(ctx, session)
        listed = await chosen.run(functools.partial(chosen.box.files.ls, path))
        files = [
            ListedFile(path=info.path, size=info.size, folder=info.is_dir)
            for info in listed[:MAX_FILES]
        ]
        cut = listed.truncated or len(listed) > MAX_FILES
        lines = [
            f"{info.path}/" if info.folder else f"{info.path}  {info.size:,}" for info in files
        ]
        text = "\n".join([*lines, *(["..."] if cut else [])]) or "(no files)"
        return _answer(text, Files(session=chosen.name, files=files, truncated=cut))

    async def read_file(
        self, path: str, ctx: Context, session: str | None = None
    ) -> Annotated[CallToolResult, SessionHandle]:
        """Read a file of the sandbox: text, or an image. Long texts are shortened."""
        chosen = await self._session(ctx, session)
        data = await _download(chosen, path)
        kind = mimetypes.guess_type(path)[0] or ""
        if kind in ("image/png", "image/jpeg", "image/gif", "image/webp"):
            content: list[Any] = [image_content(data, kind)]
        else:
            content = list(text_content(chosen, data.decode("utf-8", "replace")))
        facts = SessionHandle(session=chosen.name).model_dump()
        return CallToolResult(content=content, structured_content=facts)

    async def write_file(
        self,
        path: str,
        content: str,
        ctx: Context,
        session: str | None = None,
        base64_encoded: bool = False,  # noqa: FBT001, FBT002 - the SDK passes it by name
    ) -> Annotated[CallToolResult, Written]:
        """Write or overwrite a file of the sandbox. Bytes go as base64."""
        try:
            data = base64.b64decode(content, validate=True) if base64_encoded else content.encode()
        except ValueError as exc:
            raise ToolError(f"the content cannot be written: {exc}") from None
        chosen = await self._session(ctx, session)
        [done] = await chosen.run(lambda: chosen.box.files.upload([(path, data)]))
        if done.error is not None:
            raise ToolError(f"{path} cannot be written: {done.error}")
        facts = Written(session=chosen.name, path=path, size=len(data))
        result = _answer(f"wrote {len(data):,} bytes to {path}", facts)
        return await self._ended(ctx, chosen, session, result)

    async def context_open(  # noqa: PLR0917 - the SDK passes them by name
        self,
        ctx: Context,
        name: str = "text",
        path: str | None = None,
        output: str | None = None,
        text: str | None = None,
        session: str | None = None,
    ) -> Annotated[CallToolResult, OpenText]:
        """Open a long text for context_grep and context_peek, under a name.

        Give one of: `path`, a file of the sandbox; `output`, the number of a shortened output;
        `text` itself.
        """
        if sum(source is not None for source in (path, output, text)) != 1:
            raise ToolError("give exactly one of path, output and text")
        if text is None:
            chosen = await self._session(ctx, session)
            if path:
                text = (await _download(chosen, path)).decode("utf-8", "replace")
            else:
                text = chosen.output(str(output))
        index = self._sessions.open_context(_owner(ctx), name, text)
        lines = text.count("\n") + 1
        titles = [f"{section.start:,}: {section.title}" for section in index.sections()[:30]]
        shown = "\n".join([f"{name}: {index.length:,} characters in {lines:,} lines", *titles])
        return _answer(shown, OpenText(name=name, characters=index.length, lines=lines))

    async def context_grep(
        self,
        pattern: str,
        ctx: Context,
        name: str | None = None,
        ignore_case: bool = False,  # noqa: FBT001, FBT002
    ) -> Annotated[CallToolResult, Matches]:
        """Find the lines of an open text that match a regular expression, with their offsets.

        Without a name, it is the text that was opened last.
        """
        index = self._sessions.context(_owner(ctx), name)
        search = functools.partial(index.grep, pattern, most=MAX_HITS, ignore_case=ignore_case)
        hits = await asyncio.to_thread(search)
        lines = [f"line {hit.line} at {hit.start}: {hit.text}" for hit in hits.hits]
        more = [f"... {hits.total:,} in all" + ("" if hits.counted else ", or more")]
        text = "\n".join(lines + more * hits.more) or "nothing matches"
        matches = [Match(line=hit.line, start=hit.start, text=hit.text) for hit in hits.hits]
        return _answer(text, Matches(matches=matches, total=hits.total, complete=hits.counted))

    async def context_peek(
        self, start: int, ctx: Context, length: int = 2000, name: str | None = None
    ) -> str:
        """Return up to 20,000 characters of an open text, from an offset on.

        Without a name, it is the text that was opened last.
        """
        index = self._sessions.context(_owner(ctx), name)
        return index.text(start, start + min(length, MAX_PEEK))

    async def open_session(self, ctx: Context) -> Annotated[CallToolResult, SessionHandle]:
        """Open a new sandbox; return the handle of its session, for the other tools."""
        made = await self._sessions.open(_owner(ctx))
        return _answer(made.name, SessionHandle(session=made.name))

    async def fork(
        self, ctx: Context, new: str | None = None, session: str | None = None
    ) -> Annotated[CallToolResult, SessionHandle]:
        """Clone a session, with all its variables and files, as a new independent one."""
        source = session if session is not None else self._sessions.default(_owner(ctx))
        made = await self._sessions.fork(_owner(ctx), source, new)
        return _answer(f"{made.name} is a copy of {source}", SessionHandle(session=made.name))

    async def checkpoint(
        self, ctx: Context, session: str | None = None
    ) -> Annotated[CallToolResult, Mark]:
        """Keep a session's variables and files as they are now; return a mark for rollback."""
        chosen = await self._session(ctx, session)
        mark = await chosen.run(chosen.box.checkpoint)
        return _answer(mark, Mark(session=chosen.name, mark=mark))

    async def rollback(
        self, mark: str, ctx: Context, session: str | None = None
    ) -> Annotated[CallToolResult, Mark]:
        """Restore a session's variables and files to a checkpoint, which stays usable."""
        chosen = await self._session(ctx, session)
        await chosen.run(functools.partial(chosen.box.rollback, mark))
        facts = Mark(session=chosen.name, mark=mark)
        result = _answer(f"{chosen.name} is as it was at {mark}", facts)
        return await self._ended(ctx, chosen, session, result)

    async def list_sessions(self, ctx: Context) -> Annotated[CallToolResult, SessionList]:
        """List the open sessions."""
        names = [session.name for session in self._sessions.of(_owner(ctx))]
        return _answer("\n".join(names) or "(no session is open)", SessionList(sessions=names))

    async def close_session(
        self, ctx: Context, session: str | None = None
    ) -> Annotated[CallToolResult, SessionHandle]:
        """End a session: its variables and files are lost."""
        name = session if session is not None else self._sessions.default(_owner(ctx))
        await self._sessions.close(_owner(ctx), name)
        return _answer(f"{name} has ended", SessionHandle(session=name))

    async def ask(self, question: str, ctx: Context, name: str | None = None) -> str:
        """Let a language model answer a question about an open text of any length.

        Without a name, it is the text that was opened last.
        """
        assert self._ask is not None
        index = self._sessions.context(_owner(ctx), name)
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

    async def _session(self, ctx: Context, name: str | None) -> Session:
        return await self._sessions.get(_owner(ctx), name)

    async def _ended(
        self, ctx: Context, session: Session, named: str | None, result: CallToolResult
    ) -> CallToolResult:
        """Announce changed files; tell a client that named no session which one it was."""
        await self._changed(ctx.request_context, session)
        if named is None and not _owner(ctx).connected:
            note = f"[session {session.name}: pass it as `session` to go on]"
            result.content.append(TextContent(text=note))
        return result


class _Steps:
    """Reports the steps of `ask` as progress."""

    def __init__(self, ctx: Context) -> None:
        self._report, self.queue = _reporter(ctx), asyncio.Queue[str]()

    async def report(self) -> None:
        number = 0
        while True:
            line, number = await self.queue.get(), number + 1
            await self._report(number, line[:200])


def _owner(ctx: Context) -> Owner:
    return owner_of(ctx.request_context)


def _reporter(ctx: Context) -> Report:
    notes = NOTES.get()

    async def report(progress: float, line: str) -> None:
        if notes is not None:
            notes.put(line)
        with contextlib.suppress(Exception):  # the request was answered: the call is a task
            await ctx.report_progress(progress, message=line)

    return report


def _answer(text: str, facts: BaseModel) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)], structured_content=facts.model_dump())


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


def cell_content(session: Session, result: SandboxResult) -> CallToolResult:
    """Return a cell's result as content: output, value, images, error."""
    images = [
        display for display in result.displays if display.media_type in ("image/png", "image/jpeg")
    ]
    value = None if images else result.value_repr
    error = None if result.success else result.error
    stderr = stderr_with_error(result.stderr, error, result.kind)
    parts = [result.stdout, stderr, value, _lost(result)]
    content: list[Any] = list(
        text_content(session, _joined(parts) or ("" if images else "(no output)"))
    )
    content += [image_content(image.data, image.media_type) for image in images]
    facts = CellOutput(
        session=session.name,
        outcome=result.kind.value,
        isolation=str(result.isolation),
        truncated=result.truncated,
        state_lost=result.state_lost,
        files=list(result.files),
    )
    return CallToolResult(
        content=content,
        structured_content=facts.model_dump(),
        is_error=not result.success,
    )


def _lost(result: SandboxResult) -> str:
    return "The session's variables are lost." if result.state_lost else ""


def command_content(session: Session, done: ExecuteResponse) -> CallToolResult:
    """Return a command's result as content: output and exit code."""
    text = _joined([done.output, done.error]) or "(no output)"
    isolation = str(session.box.isolation)
    facts = CommandOutput(
        session=session.name,
        exit_code=done.exit_code,
        truncated=done.truncated,
        isolation=isolation,
    )
    code = f"exit code {done.exit_code}" if done.exit_code else ""
    content = text_content(session, _joined([text, code]))
    return CallToolResult(
        content=list(content),
        structured_content=facts.model_dump(),
        is_error=done.exit_code != 0,
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
