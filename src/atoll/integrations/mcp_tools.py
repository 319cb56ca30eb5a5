"""MCPTools: the tools of an MCP server as tools of a sandbox or an environment.

    with atoll.MCPTools("my-server", "--stdio") as server:
        env = atoll.REPLEnvironment(tools=[server])

The official SDK's client runs in its own thread and event loop, so that blocking and async code can
share one connection. SECURITY: a server that is a command runs on the host as the caller; guest
code reaches it only by calls whose arguments match the schemas. Results are untrusted.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from typing import TYPE_CHECKING, Any, Self

from atoll import extras
from atoll.concurrency import forks
from atoll.errors import ConfigError
from atoll.sandbox.tools import from_schema, plain_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from atoll.sandbox.tools import Tool

START_SECONDS = 60.0
CALL_SECONDS = 120.0
MAX_TOOLS = 1_000
LONGEST_NAME, LONGEST_DESCRIPTION = 64, 4_000


class MCPTools:
    """A connection to one MCP server: a command on this machine, or a URL.

    It is opened by `with`, or on first use, and stays open until close().
    """

    def __init__(
        self,
        server: str,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        prefix: str = "",
        module: str = "",
        read_only: Collection[str] = (),
        timeout_seconds: float = CALL_SECONDS,
        **facts: Any,
    ) -> None:
        """`server` is a program, with its arguments, or a URL.

        `prefix` begins the name of every tool. With `module="github"`, guest code finds them in
        `from tools import github`, and a prompt has one line for all of them. `read_only` names
        those that change nothing (the server's own annotations are not trusted), `facts` are
        fields of Tool for all of them.
        """
        self._server, self._arguments, self._env = server, arguments, env
        self._prefix, self._module, self._read_only = prefix, module, frozenset(read_only)
        self._timeout, self._facts = timeout_seconds, facts
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Any = None
        self._tools: tuple[Tool, ...] = ()
        self._opening = forks.new_lock()
        self._thread: threading.Thread | None = None

    def atoll_tools(self) -> tuple[Tool, ...]:
        """Return the server's tools; connect first if needed."""
        with self._opening:
            if self._loop is None:
                self._open()
        return self._tools

    def close(self) -> None:
        """Close the connection and end the server's process. Calling it twice is harmless."""
        with self._opening:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
            if loop is not None and thread is not None:
                loop.call_soon_threadsafe(self._ending.set)
                thread.join()

    def __enter__(self) -> Self:
        self.atoll_tools()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _open(self) -> None:
        target = self._target()
        ready: concurrent.futures.Future[list[Any]] = concurrent.futures.Future()
        serving = threading.Thread(
            target=lambda: asyncio.run(self._serve(target, ready)), name="atoll-mcp", daemon=True
        )
        serving.start()
        try:
            listed = ready.result(START_SECONDS)
        except Exception as exc:
            self._loop = None
            said = f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__
            raise ConfigError(f"the MCP server {self._server} cannot be used: {said}") from exc
        self._thread = serving
        self._tools = tuple(self._tool(tool, name) for tool, name in _with_names(listed))

    def _target(self) -> Any:
        try:
            from mcp import StdioServerParameters  # noqa: PLC0415 - an extra
        except ImportError:
            raise ConfigError(f"MCPTools needs the MCP SDK. {extras.hint('mcp')}") from None
        if self._server.startswith(("http://", "https://")):
            return self._server
        env = None if self._env is None else dict(self._env)
        return StdioServerParameters(command=self._server, args=list(self._arguments), env=env)

    async def _serve(self, target: Any, ready: concurrent.futures.Future[list[Any]]) -> None:
        """Hold the connection until close(); called in the thread."""
        from mcp import Client  # noqa: PLC0415 - an extra

        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with asyncio.timeout(START_SECONDS) as limit, Client(target) as client:
                self._client = client
                listed = await _list_tools(client)
                limit.reschedule(None)
                ready.set_result(listed)
                await self._ending.wait()
        except BaseException as exc:  # noqa: BLE001 - raised in the thread that connects
            if not ready.done():
                ready.set_exception(_cause(exc))

    def _tool(self, described: Any, shown: str) -> Tool:
        name = described.name

        def call(**arguments: Any) -> Any:
            return self._call(name, arguments)

        facts: dict[str, object] = {
            "read_only": name in self._read_only,
            "source": "mcp",
            "cost": "network",
            "result_schema": described.output_schema,
            "module": self._module,
            **self._facts,
        }
        schema = described.input_schema or {"type": "object"}
        text = (described.description or "")[:LONGEST_DESCRIPTION]
        return from_schema(self._prefix + shown, call, schema, text, **facts)

    def _call(self, name: str, arguments: dict[str, object]) -> Any:
        """Call a tool of the server; called in a thread of the bridge."""
        loop = self._loop
        if loop is None:
            raise ConfigError(f"the connection to the MCP server {self._server} is closed")
        asked = self._client.call_tool(name, arguments, read_timeout_seconds=self._timeout)
        result = asyncio.run_coroutine_threadsafe(asked, loop).result()
        texts = [part.text for part in result.content if getattr(part, "type", "") == "text"]
        if result.is_error:
            raise RuntimeError("\n".join(texts) or f"{name} failed without a message")
        content = result.structured_content
        if isinstance(content, dict):
            return content["result"] if set(content) == {"result"} else content
        return "\n".join(texts)


def _with_names(listed: list[Any]) -> Iterator[tuple[Any, str]]:
    """Yield tools with names that differ as Python names too: `a-b` and `a_b`."""
    taken: set[str] = set()
    for tool in listed:
        name, number = plain_name(tool.name[:LONGEST_NAME]), 2
        while name in taken:
            name, number = f"{plain_name(tool.name[:LONGEST_NAME])}_{number}", number + 1
        taken.add(name)
        yield tool, name


async def _list_tools(client: Any) -> list[Any]:
    tools: list[Any] = []
    cursor = None
    while len(tools) < MAX_TOOLS:
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if not cursor:
            break
    return tools


def _cause(error: BaseException) -> Exception:
    """Return the first plain exception of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, Exception) else RuntimeError(type(error).__name__)
