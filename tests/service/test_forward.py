"""Requests that are passed on to another service."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import Request

pytest.importorskip("httpx2", reason="the extra `redis` is not installed")

from atoll.service.cluster.forward import Forwarder, UnreachableError
from atoll.service.telemetry.tracing import Traces


def _request(path: str, raw: bytes, query: bytes = b"") -> Request:
    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b""}

    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": raw, "query_string": query,
        "headers": [(b"host", b"near"), (b"x-api-key", b"k")],
    }  # fmt: skip
    return Request(scope, receive)


async def test_a_path_is_passed_on_as_it_came() -> None:
    lines: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.append(await reader.readline())
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    forwarder = Forwarder(Traces(""))
    async with server:
        request = _request("/download/s/a?b#c d", b"/download/s/a%3Fb%23c%20d", b"x=%2F")
        passed_on = await forwarder.pass_on(request, f"http://127.0.0.1:{port}")
        await passed_on._answer.aclose()
    await forwarder.close()
    assert passed_on.status_code == 204
    assert lines == [b"GET /download/s/a%3Fb%23c%20d?x=%2F HTTP/1.1\r\n"]


async def test_a_service_that_is_gone_is_told_as_that() -> None:
    forwarder = Forwarder(Traces(""))
    with pytest.raises(UnreachableError, match="cannot be reached"):
        await forwarder.pass_on(_request("/x", b"/x"), "http://127.0.0.1:1")
    await forwarder.close()
