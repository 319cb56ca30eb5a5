"""A service that says nothing any more is given up; one that is slow and lives is waited for."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

import atoll
from atoll.backends.remote import connection

DESCRIBED = b'{"id":"s1","isolation":"jailed","context_shared":false}'


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(connection, "QUIET_SECONDS", 0.1)
    # A busy machine may leave this process, the service's too, without a core for a second.
    monkeypatch.setattr(connection, "ALIVE_SECONDS", 2.0)
    monkeypatch.setattr(connection, "SILENT_SECONDS", 2.0)


@contextlib.asynccontextmanager
async def service(answers):
    """A server that answers requests by their path with what `answers` returns; None: never."""

    serving = []

    async def serve(reader, writer):
        serving.append(asyncio.current_task())
        with contextlib.suppress(
            asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError
        ):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                size = head.partition("content-length: ")[2].partition("\r\n")[0]
                await reader.readexactly(int(size or 0))
                body = await answers(head.split()[1])
                if body is None:
                    await asyncio.Event().wait()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving)


def opening(url):
    return atoll.aio.create_sandbox(backend="remote", url=url, api_key="k" * 20)


async def test_a_service_that_never_answers_is_no_service():
    async def silent(_path):
        return None

    async with service(silent) as url, asyncio.timeout(30):
        with pytest.raises(atoll.SandboxLostError, match=url):
            await opening(url)


async def test_a_service_that_falls_silent_loses_its_sandboxes():
    alive = True

    async def stops(path):
        return (DESCRIBED if path.endswith("/sessions") else b"{}") if alive else None

    async with service(stops) as url, asyncio.timeout(30):
        box = await opening(url)
        alive = False
        for call in (box.execute("1"), box.checkpoint(), box.get_variable("x")):
            with pytest.raises(atoll.SandboxLostError):
                await call
        await box.destroy()


async def test_a_slow_answer_of_a_service_that_lives_is_waited_for():
    asked, lives = [], asyncio.Event()

    async def slow(path):
        asked.append(path)
        if asked.count("/health") == 3:
            lives.set()
        if path.endswith("/sessions"):
            await lives.wait()
        return DESCRIBED

    async with service(slow) as url, asyncio.timeout(30):
        box = await opening(url)
        assert asked.count("/health") >= 3
        await box.destroy()


async def test_a_service_that_lives_and_never_answers_a_request_is_given_up(monkeypatch):
    monkeypatch.setattr(connection, "LONGEST_SECONDS", 0.3)

    async def forgets(path):
        return b"{}" if path.endswith("/health") else None

    async with service(forgets) as url, asyncio.timeout(30):
        with pytest.raises(atoll.SandboxLostError, match=r"lives but gave no answer within 0\.3 s"):
            await opening(url)
