"""A stand-in for a model's server: it says what a test tells it to, and notes what it was asked.

It speaks just enough HTTP, on loopback, in the test's own event loop. It is no model.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from atoll.agent.rlm.models.client import HttpModel

KEY = "sk-very-secret-0123456789"
Make = Callable[..., HttpModel]
Act = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True)
class Seen:
    """One request."""

    path: str
    headers: dict[str, str]
    body: Any


class StandIn:
    """Answers the first request by the first act, and so on; the last act stays."""

    def __init__(self) -> None:
        self.acts: list[Act] = []
        self.seen: list[Seen] = []
        self.asked = asyncio.Event()
        self.gone = asyncio.Event()
        """Set when a client has left a connection."""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            self.seen.append(await _request(reader))
            self.asked.set()
            act = self.acts[min(len(self.seen), len(self.acts)) - 1]
            await act(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.gone.set()
        finally:
            writer.close()

    def silent(self, *first: bytes) -> Act:
        """Say `first`, then nothing, until the client leaves."""

        async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.writelines(first)
            await writer.drain()
            await reader.read()
            self.gone.set()

        return act


async def _request(reader: asyncio.StreamReader) -> Seen:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.split("\r\n")
    pairs = [line.partition(":") for line in lines if line]
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Seen(first.split()[1], headers, json.loads(body))


def say(*parts: bytes) -> Act:
    """These bytes, one write each, then the end."""

    async def act(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)

    return act


def head(status: int = 200, kind: str = "application/json", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Some", f"content-type: {kind}", "connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "\r\n"]).encode()


def answer(value: Any, status: int = 200, **headers: str) -> Act:
    return say(head(status, **headers), json.dumps(value).encode())


def fails(status: int, code: str = "", message: str = "", **headers: str) -> Act:
    return answer({"error": {"type": code, "message": message}}, status, **headers)


def stream(*data: Any, end: bytes = b"data: [DONE]\n\n") -> Act:
    """Each value as one event."""
    return say(head(kind="text/event-stream"), *map(event, data), end)


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chat(text: str, finish: str | None = "stop", **more: Any) -> dict[str, Any]:
    """A whole answer in OpenAI's dialect."""
    message = {"role": "assistant", "content": text}
    return {"choices": [{"message": message, "finish_reason": finish}], **more}


def piece(text: str | None, finish: str | None = None) -> dict[str, Any]:
    """The next piece of one."""
    return {"choices": [{"delta": {"content": text}, "finish_reason": finish}]}


async def no_sleep(_seconds: float) -> None:
    """Waiting, without the time."""
