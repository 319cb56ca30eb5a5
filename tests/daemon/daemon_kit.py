"""A backend that saves, and servers in this process, for the daemon's tests."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar

import atoll
from atoll.backends.daemon.connection import DaemonConnection, connect
from atoll.daemon.server import DaemonServer
from atoll.factory import open_sandbox
from atoll.sandbox.verbs import GetVariable
from atoll.types import Outcome, SandboxResult


async def open_native(config: atoll.SandboxConfig) -> atoll.BaseSandbox:
    """Sandboxes of the native backend, for servers without a pool."""
    return await open_sandbox(dataclasses.replace(config, backend="native"))


class Notebook(atoll.BaseSandbox):
    """A backend that runs `name = json` and `name`, forks and saves: its state is one dict."""

    backend = "notebook"
    capabilities = frozenset(atoll.Capability)
    opened: ClassVar[list[Notebook]] = []
    isolation = atoll.Isolation.JAILED

    def __init__(self, config: atoll.SandboxConfig) -> None:
        super().__init__(config.policy)
        self.config, self.destroyed = config, False
        self.names: dict[str, Any] = json.loads(config.state) if config.state else {}
        self.marks: dict[str, str] = {}
        self.waited = 0
        self.cold_start: str | None = None
        self.release = asyncio.Event()
        Notebook.opened.append(self)

    async def execute(self, code, *, timeout_ms=None, key=None):
        name, _, value = code.partition(" = ")
        if name == "wait":
            self.waited += 1
            await self.release.wait()
        elif value:
            self.names[name] = json.loads(value)
        return SandboxResult(
            kind=Outcome.OK,
            value=self.names.get(name),
            memory_used_bytes=self.names.get("memory", 1),
            isolation=self.isolation,
            cold_start=self.cold_start,
            state=b"s" * 1_000_000 if name == "state" else None,
        )

    async def validate_code(self, code):
        return True

    async def ask_variable(self, request):
        assert isinstance(request, GetVariable)
        return {"found": request.name in self.names, "value": self.names.get(request.name)}

    async def cancel(self):
        self.release.set()

    async def fork_with(self, config):
        twin = Notebook(self.config)
        twin.names = dict(self.names)
        return twin

    async def checkpoint(self):
        mark = f"mark {len(self.marks)}"
        self.marks[mark] = json.dumps(self.names)
        return mark

    async def rollback(self, mark):
        if mark not in self.marks:
            raise atoll.StateError(f"no mark {mark!r}")
        self.names = json.loads(self.marks[mark])

    async def branches(self):
        return tuple(self.marks)

    async def save(self):
        return json.dumps(self.names).encode()

    save_whole = save

    async def destroy(self):
        self.destroyed = True
        self.release.set()


class Plain(Notebook):
    """The same backend without any power."""

    capabilities = frozenset()
    fork = atoll.BaseSandbox.fork
    checkpoint = atoll.BaseSandbox.checkpoint
    branches = atoll.BaseSandbox.branches
    save = save_whole = atoll.BaseSandbox.save


async def open_plain(config: atoll.SandboxConfig) -> Plain:
    return Plain(config)


def left_out(blob: bytes) -> list[str]:
    """What a saved notebook lacks: a variable of that name says so; real states tell themselves."""
    if not blob.startswith(b"{"):
        return list(atoll.describe_state(blob).left_out)
    return json.loads(blob).get("left_out", [])


async def open_notebook(config: atoll.SandboxConfig) -> Notebook:
    return Notebook(config)


class Running:
    """A server in this process and its socket."""

    def __init__(self, server: DaemonServer, path: Path) -> None:
        self.server, self.path = server, path

    async def link(self) -> DaemonConnection:
        return await connect(self.path)

    def raw(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(self.path))
        sock.setblocking(False)
        return sock


Serve = Callable[..., Awaitable[Running]]


async def read_to_end(sock: socket.socket, seconds: float = 10) -> bytes:
    """Everything until the other side closes."""
    data = b""
    async with asyncio.timeout(seconds):
        while part := await asyncio.get_running_loop().sock_recv(sock, 1 << 16):
            data += part
    return data


async def until(true: Callable[[], bool], seconds: float = 10) -> None:
    """Wait for something to come true."""
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110 - what it waits for tells nobody
            await asyncio.sleep(0.01)
