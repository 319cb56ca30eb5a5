"""Rows about `atoll serve`: the overhead of HTTP, and the time until output is seen."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import warm
from bench.cpu import AT_ONCE, EXECUTIONS, QUICK_EXECUTIONS, used
from bench.rows import Arms, Goal, needs, row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.rows import Scale

CLIENT = """
import http.client, json, sys, threading
host, port, key, count, at_once = sys.argv[1:]
port, count, at_once = int(port), int(count), int(at_once)
body = json.dumps({"code": "print('hi')", "template": "bare"})
def work():
    connection = http.client.HTTPConnection(host, port)
    for _ in range(count // at_once):
        connection.request("POST", "/api/v1/run", body, {"authorization": "Bearer " + key})
        answer = json.load(connection.getresponse())
        assert answer["stdout"] == "hi\\n", answer
threads = [threading.Thread(target=work) for _ in range(at_once)]
for one in threads: one.start()
for one in threads: one.join()
"""
TICKS = """
import time
for _ in range(10):
    time.sleep(0.02)
    print(time.monotonic(), flush=True)
"""


@row(
    name="http-run",
    what=f"CPU of one-shot POST /run on keep-alive, {AT_ONCE} at a time",
    against="the same through the pool in process",
    rounds=5,
    unit="CPU-ms",
    goal=Goal(ratio=1.5),
)
def http_run(scale: Scale) -> Iterator[Arms]:
    """Measure a run over HTTP; the client is another process, whose CPU time is not counted."""
    needs("uvicorn", "starlette", "msgspec", extra="server")
    pool = warm.shared()
    config, count = pool.config("bare"), QUICK_EXECUTIONS if scale.quick else EXECUTIONS

    async def in_process() -> None:
        async def work() -> None:
            for _ in range(count // AT_ONCE):
                assert (await pool.pool.run(warm.HI, config)).success

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        await pool.park(config)

    async def over_http(host: str, port: int, key: str) -> None:
        await _requests(host, port, key, count)
        await pool.park(config)

    def spent(work: Any) -> float:
        before = sum(used().values())
        pool.run(work)
        return (sum(used().values()) - before) / count

    with _serving(pool) as address:
        yield Arms(ours=lambda: spent(over_http(*address)), theirs=lambda: spent(in_process()))


@row(
    name="http-nsjail",
    what=f"a one-shot POST /run on keep-alive, {AT_ONCE} at a time",
    against="a service of 30 lines that starts python under nsjail",
    rounds=5,
    unit="ms",
    goal=Goal(ratio=0.1),
)
def http_nsjail(scale: Scale) -> Iterator[Arms]:
    """Measure the mean time of a request, compared with a service that starts nsjail."""
    needs("uvicorn", "starlette", "msgspec", extra="server")
    needs("nsjail", extra="peers")
    pool = warm.shared()
    config, count = pool.config("bare"), QUICK_EXECUTIONS if scale.quick else EXECUTIONS

    def took(host: str, port: int, key: str) -> float:
        begun = time.perf_counter()
        pool.run(_requests(host, port, key, count))
        return (time.perf_counter() - begun) * 1000 / count

    def ours() -> float:
        pool.run(pool.park(config))
        return took(*address)

    with _serving(pool) as address, _nsjail_service() as port:
        yield Arms(ours=ours, theirs=lambda: took("127.0.0.1", port, "none"))


@row(
    name="http-first-byte",
    what="a printed line seen by an HTTP client",
    against="the same line through a pipe of python",
    rounds=10,
    unit="ms",
    goal=Goal(value=5),
)
def http_first_byte(_scale: Scale) -> Iterator[Arms]:
    """Measure the time until output arrives; guest and client share the monotonic clock."""
    needs("uvicorn", "starlette", "msgspec", extra="server")
    pool = warm.shared()
    pool.config("bare")
    with _serving(pool) as address:
        host, port, key = address

        def ours() -> float:
            return pool.run(asyncio.to_thread(_delay_over_http, host, port, key))

        yield Arms(ours=ours, theirs=_delay_of_a_pipe)


async def _requests(host: str, port: int, key: str, count: int) -> None:
    """Send the requests from another process."""
    arguments = [host, str(port), key, str(count), str(AT_ONCE)]
    client = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT, *arguments)
    assert await client.wait() == 0


@contextlib.contextmanager
def _nsjail_service() -> Iterator[int]:
    """Start the peer; yield its port."""
    arguments = [sys.executable, "-m", "bench.nsjail_service"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()


def _delay_over_http(host: str, port: int, key: str) -> float:
    connection = http.client.HTTPConnection(host, port)
    headers = {"authorization": f"Bearer {key}", "accept": "application/x-ndjson"}
    body = json.dumps({"code": TICKS, "template": "bare"})
    connection.request("POST", "/api/v1/run", body, headers)
    delays = []
    with connection.getresponse() as answer:
        for line in answer:
            event = json.loads(line)
            if event["type"] == "stdout":
                delays.append((time.monotonic() - float(event["text"].split()[-1])) * 1000)
    connection.close()
    return sorted(delays)[len(delays) // 2]


def _delay_of_a_pipe() -> float:
    arguments = [sys.executable, "-c", TICKS]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        delays = [(time.monotonic() - float(line)) * 1000 for line in process.stdout]
    return sorted(delays)[len(delays) // 2]


@contextlib.contextmanager
def _serving(pool: warm.Warm) -> Iterator[tuple[str, int, str]]:
    """Yield a service on the pool of all rows, in the pool's event loop."""
    from atoll.service.access.keys import Quota  # noqa: PLC0415
    from atoll.service.core.service import Service  # noqa: PLC0415
    from atoll.service.http import serving  # noqa: PLC0415 - an extra
    from atoll.service.settings import ServiceSettings  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        settings = ServiceSettings(folder=Path(folder), port=0)
        made = Service(settings, pool.pool.open, pool.pool.stats, pool.pool.run)
        pool.run(made.open())
        listener = serving.listen(settings)
        server = serving.server(made)
        loop = pool.runner.get_loop()
        running = loop.create_task(server.serve(sockets=[listener]))
        wide = Quota(requests_per_second=1e6, burst=10**6)
        key = made.keys.add(quota=wide)
        host, port = listener.getsockname()[:2]
        try:
            yield host, port, key
        finally:
            server.should_exit = True

            async def end() -> None:
                await running
                await made.stop()

            pool.run(end())
