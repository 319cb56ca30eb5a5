"""The proxy: what is forwarded, what is refused and in which words, what is counted and listed."""

from __future__ import annotations

import asyncio
import socket

import pytest
from egresskit import NAME, answer, policy_for, resolver_of, serving

from atoll.network import NetworkPolicy


async def test_a_request_is_forwarded_and_listed_without_its_query(origin):
    async with serving(policy_for(origin)) as client:
        reply = await client.get(f"http://{NAME}:{origin.port}/a/b?key=value")
        (one,) = client.use().requests
    assert reply.endswith(b"\r\n\r\nok")
    assert origin.requests[0].startswith(b"GET /a/b?key=value HTTP/1.1\r\n")
    assert (one.host, one.port, one.method, one.path) == (NAME, origin.port, "GET", "/a/b")
    assert (one.status, one.refused) == (200, None)
    assert one.sent == len(origin.requests[0])
    assert one.received == len(answer())


async def test_a_body_is_forwarded_in_both_directions(origin):
    async def echo(_reader, writer):
        body = origin.requests[-1].partition(b"\r\n\r\n")[2]
        writer.write(answer(body))

    origin.answers["/"] = echo
    data = bytes(range(256)) * 2000
    async with serving(policy_for(origin)) as client:
        reply = await client.get(f"http://{NAME}:{origin.port}/", method="POST", body=data)
    assert reply.partition(b"\r\n\r\n")[2] == data


async def test_one_connection_serves_many_requests_with_one_connection_to_the_server(origin):
    request = f"GET http://{NAME}:{origin.port}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    last = request.replace(b"Host: x", b"Host: x\r\nConnection: close")
    async with serving(policy_for(origin)) as client:
        reply = await client.say(request, request, last)
        assert len(client.use().requests) == 3
    assert reply.count(b"200 OK") == 3
    assert origin.connections == 1


async def test_the_head_of_a_request_is_acknowledged_at_once(origin, monkeypatch):
    """A client that waits for that, as requests does behind a proxy, must not wait for a timer."""
    options = []
    real = socket.socket.setsockopt

    def note(self, *given):
        options.append(given)
        return real(self, *given)

    monkeypatch.setattr(socket.socket, "setsockopt", note)
    async with serving(policy_for(origin)) as client:
        await client.get(f"http://{NAME}:{origin.port}/")
    assert (socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1) in options


async def test_a_server_that_closed_an_idle_connection_is_asked_again_on_a_fresh_one(origin):
    async def close_after(_reader, writer):
        writer.write(answer())
        await writer.drain()
        writer.close()

    origin.answers["/"] = close_after
    async with serving(policy_for(origin)) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        for _ in range(2):
            writer.write(f"GET http://{NAME}:{origin.port}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        writer.close()
    assert origin.connections == 2


async def test_a_refusal_is_said_in_the_status_line_and_the_body():
    async with serving(["api.example.com:443"]) as client:
        for request in (b"CONNECT evil.test:443 HTTP/1.1\r\nHost: x\r\n\r\n",
                        b"GET http://evil.test:443/ HTTP/1.1\r\nHost: x\r\n\r\n"):  # fmt: skip
            reply = await client.say(request)
            words = (
                b"NetworkNotAllowed: this sandbox may reach api.example.com:443; "
                b"asked for evil.test:443"
            )
            assert reply.startswith(b"HTTP/1.1 403 " + words + b"\r\n")
            assert reply.endswith(words + b"\n")
        assert [one.method for one in client.use().refused] == ["CONNECT", "GET"]


async def test_a_refused_upload_still_gets_its_words():
    async with serving(["api.test"]) as client:
        reply = await client.get("http://evil.test/", method="POST", body=b"x" * 500_000)
    assert b"NetworkNotAllowed" in reply


@pytest.mark.parametrize(
    ("answer_of_caller", "words"),
    [
        (False, "the host refused"),
        ("not on Sundays", "not on Sundays"),
        (ZeroDivisionError(), "on_request failed"),
    ],
)
async def test_the_caller_may_refuse(origin, answer_of_caller, words):
    def decide(_asked):
        if isinstance(answer_of_caller, Exception):
            raise answer_of_caller
        return answer_of_caller

    async with serving(policy_for(origin, on_request=decide)) as client:
        reply = await client.get(f"http://{NAME}:{origin.port}/")
        assert words in client.refusals()[0]
    assert words.encode() in reply
    assert not origin.requests


async def test_the_caller_is_asked_about_allowed_requests_alone(origin):
    seen = []

    async def decide(asked):
        seen.append((asked.method, asked.host, asked.path))

    async with serving(policy_for(origin, on_request=decide)) as client:
        await client.get("http://evil.test/")
        reply = await client.get(f"http://{NAME}:{origin.port}/x?y")
    assert seen == [("GET", NAME, "/x")]
    assert b"200 OK" in reply


async def test_an_unreachable_server_is_said_in_words():
    async with serving(NetworkPolicy(["127.0.0.1:1"])) as client:
        reply = await client.get("http://127.0.0.1:1/")
        (listed,) = client.share.take().requests
    assert reply.startswith(b"HTTP/1.1 502 NetworkUnreachable: 127.0.0.1:1 cannot be reached")
    assert "127.0.0.1:1 cannot be reached" in listed.failed
    assert listed.refused is None


async def test_a_name_without_an_address_is_said_in_words():
    def nowhere(*_args):
        raise OSError("no such name")

    async with serving(["api.test"], nowhere) as client:
        assert b"502 NetworkUnreachable: api.test has no address" in await client.get(
            "http://api.test/"
        )


async def test_the_list_of_requests_is_bounded(origin, monkeypatch):
    monkeypatch.setattr("atoll.egress.rules.MAX_LISTED", 2)
    async with serving(policy_for(origin)) as client:
        for _ in range(3):
            await client.get("http://evil.test/")
        use = client.use()
        assert (len(use.requests), use.unlisted) == (2, 1)
        assert client.use().requests == ()


async def test_closing_the_gateway_ends_a_request_under_way(origin):
    asked = asyncio.Event()

    async def never(_reader, _writer):
        asked.set()
        await asyncio.sleep(60)

    origin.answers["/"] = never
    async with serving(policy_for(origin)) as client:
        request = asyncio.ensure_future(client.get(f"http://{NAME}:{origin.port}/"))
        await asked.wait()
        await client.share.release()
        assert await request == b""
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", client.port)


async def test_clones_share_the_proxy_until_the_last_one_lets_go(origin):
    decided = []
    async with serving(policy_for(origin)) as client:
        policy = policy_for(origin, on_request=decided.append)
        clone = client.share.share(policy)
        await client.share.release()
        assert b"200 OK" in await client.get(f"http://{NAME}:{origin.port}/")
        assert len(clone.take().requests) == len(decided) == 1
        await clone.release()
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", client.port)


async def test_the_guests_own_loopback_is_not_asked_of_the_proxy_unless_it_is_named(origin):
    async with serving(["api.test"]) as client:
        found = client.gateway.environment({"HTTP_PROXY": "http://mine"})
    assert found["NO_PROXY"] == "localhost,127.0.0.1,::1"
    assert "HTTP_PROXY" not in found
    assert found["https_proxy"] == "http://127.0.0.1:3128"
    async with serving(["localhost:80"], resolver_of("127.0.0.1")) as client:
        assert "NO_PROXY" not in client.gateway.environment({})
