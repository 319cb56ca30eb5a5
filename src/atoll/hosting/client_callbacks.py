"""A session's callbacks to its client: printed lines, and the guest's calls of host functions."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

from atoll.errors import SandboxError
from atoll.guest.core.stdin import STDIN_CALL
from atoll.guest.shared import rpc, values
from atoll.network import NETWORK_CALL
from atoll.sandbox import signatures
from atoll.sandbox.bridge import CallFailedError
from atoll.sandbox.wire import options

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atoll.concurrency.shares import Slot
    from atoll.guest.shared.messages import Json
    from atoll.network import NetworkRequest
    from atoll.rpc.passed_fds import Reply

MAX_LINES = 10_000


class Client(Protocol):
    """The listener of a session: a connection's peer, or an execution of the HTTP service."""

    def notify(self, method: str, params: Json) -> None:
        """Send a message that has no answer."""

    async def call(self, method: str, params: Json) -> Reply:
        """Ask for something, and return the answer."""
        ...


class ClientCallbacks:
    """Functions that call the client's own. The client may change from cell to cell."""

    def __init__(self) -> None:
        self._peer: Client | None = None
        self._session, self._execution = "", ""
        self._slot: Slot | None = None
        self._lines: dict[str, list[str]] = {}
        self._pieces: list[list[str]] = []
        self.holds_output = False
        """Whether output is held back until the next turn of the loop."""
        self._data: Json = {}
        self.context: Any = None
        """What a handler is given for the context that the client has itself."""

    def call_client(
        self, peer: Client, session: str, slot: Slot | None, execution: str = ""
    ) -> None:
        """Call this client from now on, under its names for the session and the execution."""
        self._peer, self._session, self._slot = peer, session, slot
        self._execution = execution

    def functions(self, data: Json) -> Json:
        """Return the functions for SandboxConfig: each calls the client's own."""
        self._data = data
        fields: Json = {"tools": self.tools(data)}
        if "on_llm_query" in (asked := options.asks(data, options.HANDLERS)):
            fields["on_llm_query"] = self._tool("llm_query")
        if "on_rlm_query" in asked:
            fields["on_rlm_query"] = self._rlm_query
        if "on_stdin" in asked:
            fields["on_stdin"] = self._tool(STDIN_CALL)
        if data.get("network") is not None:
            fields["network"] = options.network(data, self._network_request)
        for name in options.asks(data, options.STREAMS):
            whole = name == "on_output"
            fields[name] = self._on_output if whole else self._stream(name.removeprefix("on_"))
        return fields

    def tools(self, data: Json) -> dict[str, Callable[..., Awaitable[Any]]]:
        """Return functions for the tools that a client describes."""
        return {tool["name"]: self._described(tool) for tool in options.tools(data)}

    def keep_tools(self, data: Json) -> None:
        """Give a clone that is made from now on these tools, in place of those before."""
        self._data = {**self._data, "tools": data.get("tools")}

    def twin(self) -> tuple[ClientCallbacks, Json]:
        """Return callbacks for a clone of the session, and their functions."""
        twin = ClientCallbacks()
        twin.context = self.context
        return twin, twin.functions(self._data)

    def flush(self) -> None:
        """Send the lines that are held back."""
        for stream, lines in self._lines.items():
            if lines and self._peer is not None:
                params = {"session": self._session, "stream": stream, "lines": lines}
                self._peer.notify("lines", params)
        self._lines, self.holds_output = {}, False
        if self._pieces and self._peer is not None:
            self._peer.notify("output", {"session": self._session, "pieces": self._pieces})
        self._pieces = []

    def _flush_soon(self) -> None:
        """Send the held output in the next turn of the loop."""
        if not self.holds_output:
            self.holds_output = True
            asyncio.get_running_loop().call_soon(self.flush)

    def _on_output(self, stream: str, text: str) -> None:
        """Hold back a piece of output until the next turn of the loop."""
        self._flush_soon()
        if self._pieces and self._pieces[-1][0] == stream:
            self._pieces[-1][1] += text
        else:
            self._pieces.append([stream, text])

    def _stream(self, stream: str) -> Callable[[str], None]:
        """Return a callback for lines: those of one turn of the loop are sent together."""

        def on_line(line: str) -> None:
            self._flush_soon()
            held = self._lines.setdefault(stream, [])
            held.append(line)
            if len(held) >= MAX_LINES:
                self.flush()

        return on_line

    def _described(self, description: Json) -> Callable[..., Awaitable[Any]]:
        """Return a function that asks the client for a tool, with the client's description."""
        call = self._tool(description["name"])
        vars(call)[signatures.DESCRIPTION] = description
        return call

    def _tool(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            encoded = {"args": values.encode(list(args)), "kwargs": values.encode(kwargs)}
            return await self._ask({"name": name, **encoded})

        return call

    async def _network_request(self, asked: NetworkRequest) -> Any:
        return await self._tool(NETWORK_CALL)(**asdict(asked))

    async def _rlm_query(self, task: str, context: Any) -> Any:
        params: Json = {"name": "rlm_query", "args": [task]}
        if context is self.context:
            params["shared_context"] = True
        else:
            params["context"] = values.encode(context)
        return await self._ask(params)

    async def _ask(self, params: Json) -> Any:
        if self._peer is None:
            raise CallFailedError("the client has disconnected")
        self.flush()
        names = {"session": self._session}
        if self._execution:
            names["execution"] = self._execution
        aside = self._slot.aside() if self._slot else contextlib.nullcontext()
        try:
            with aside:
                answer = await self._peer.call("host.call", {**params, **names})
            return values.decode_plain(answer.value)
        except (SandboxError, rpc.MessageTooLargeError) as exc:
            raised = vars(exc).get("tool_error")
            raise CallFailedError(str(exc), raised if isinstance(raised, dict) else None) from None
