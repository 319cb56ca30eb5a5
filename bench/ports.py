"""Rows about a server in a guest, through the local listener of `port`, against one outside."""

from __future__ import annotations

import contextlib
import resource
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import atoll
from bench.rows import Arms, Goal, row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.rows import Probe, Scale

MEGABYTES, QUICK_MEGABYTES = 512, 128
CONNECTIONS = 500
PINGS = 50
SERVER = """
import asyncio, threading
async def serve(reader, writer):
    while line := await reader.readline():
        if line == b'ping\\n':
            writer.write(line)
        else:
            for _ in range(4 * int(line)):
                writer.write(BLOCK)
                await writer.drain()
    writer.close()
async def main():
    server = await asyncio.start_server(serve, '127.0.0.1', PORT, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
BLOCK = b'x' * 250_000
"""
IN_GUEST = "threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()\n"


@row(
    what="bytes of a server in a guest, through the listener of port()",
    against="the same server without a sandbox",
    rounds=5,
    unit="MB/s",
    goal=Goal(floor=150),
)
def port_throughput(scale: Scale) -> Iterator[Arms]:
    size = QUICK_MEGABYTES if scale.quick else MEGABYTES

    def rate(port: int) -> Probe:
        return lambda: _read(port, size)

    with _servers() as (ours, theirs):
        yield Arms(ours=rate(ours), theirs=rate(theirs))


@row(
    what="a connection to a server in a guest, and a round trip",
    against="the same server without a sandbox",
    rounds=10,
)
def port_connect(_scale: Scale) -> Iterator[Arms]:
    with _servers() as (ours, theirs):
        yield Arms(
            ours=lambda: _pings(ours, PINGS) / PINGS, theirs=lambda: _pings(theirs, PINGS) / PINGS
        )


@row(
    what=f"{CONNECTIONS} connections with a guest, open at once",
    against="the same server without a sandbox",
    rounds=5,
)
def port_many(_scale: Scale) -> Iterator[Arms]:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with _servers() as (ours, theirs):
        yield Arms(ours=lambda: _at_once(ours), theirs=lambda: _at_once(theirs))


@contextlib.contextmanager
def _servers() -> Iterator[tuple[int, int]]:
    """Yield the local port of a server in a guest, and that of one without a sandbox."""
    outside = SERVER.replace("PORT", "0") + "asyncio.run(main())\n"
    command = [sys.executable, "-c", outside]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        try:
            theirs = int(server.stdout.readline())
            policy = atoll.ExecutionPolicy(max_open_files=2 * CONNECTIONS)
            with atoll.create_sandbox(backend="native", policy=policy) as box:
                result = box.execute(SERVER.replace("PORT", "8000") + IN_GUEST)
                assert result.success, result.error
                while not box.ports():
                    time.sleep(0.01)
                yield int(box.port(8000).rpartition(":")[2]), theirs
        finally:
            server.kill()


def _read(port: int, megabytes: int) -> float:
    """Return how many megabytes a second arrive."""
    started, left = time.perf_counter(), megabytes * 10**6
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(b"%d\n" % megabytes)
        while left > 0:
            left -= len(sock.recv(1 << 20))
    return megabytes / (time.perf_counter() - started)


def _pings(port: int, times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        with socket.create_connection(("127.0.0.1", port)) as sock:
            _ping(sock)
    return time.perf_counter() - started


def _ping(sock: socket.socket) -> None:
    sock.sendall(b"ping\n")
    assert sock.recv(5) == b"ping\n"


def _at_once(port: int) -> float:
    started = time.perf_counter()
    with contextlib.ExitStack() as opened:
        sockets = [
            opened.enter_context(socket.create_connection(("127.0.0.1", port)))
            for _ in range(CONNECTIONS)
        ]
        for sock in sockets:
            _ping(sock)
    return time.perf_counter() - started
