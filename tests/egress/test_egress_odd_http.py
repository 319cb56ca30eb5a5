"""HTTP that is rare, old or made to confuse: both sides hear what was checked, or a refusal."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

import pytest
from egresskit import NAME, Client, Origin, answer, policy_for, resolver_of, serving

from atoll.network import NetworkPolicy


async def exchange(client: Client, raw: str) -> bytes:
    return await client.say(raw.encode("latin-1"), end=True)


def url(origin: Origin, path: str = "/") -> str:
    return f"http://{NAME}:{origin.port}{path}"


# Guests


async def test_an_http_1_0_client_is_answered_and_the_connection_ends(origin):
    async with serving(policy_for(origin)) as client:
        reply = await exchange(client, f"GET {url(origin)} HTTP/1.0\r\n\r\n")
    assert reply.endswith(b"ok")
    assert origin.requests[0].startswith(b"GET / HTTP/1.1\r\n")
    assert f"host: {NAME}:{origin.port}".encode() in origin.requests[0].lower()


@pytest.mark.parametrize(
    "line",
    ["GET {url} HTTP/2.0", "GET {url} HTTP/0.9", "GET {url}", "GET  {url} HTTP/1.1",
     "GET\t{url} HTTP/1.1", "G\rET {url} HTTP/1.1", "GET {url}\x00 HTTP/1.1", "GET {url} HTTP/1.1 x",
     " GET {url} HTTP/1.1", "GET {url}\r\nX: y HTTP/1.1"],
)  # fmt: skip
async def test_a_request_line_that_is_not_exact_is_refused(origin, line):
    async with serving(policy_for(origin)) as client:
        reply = await exchange(client, f"{line.format(url=url(origin))}\r\nHost: x\r\n\r\n")
        assert reply[9:12] in (b"400", b"403"), reply
        assert len(client.refusals()) == 1
    assert not origin.connections


async def test_a_folded_header_reaches_the_server_on_one_line(origin):
    raw = f"GET {url(origin)} HTTP/1.1\r\nHost: x\r\nX-A: one\r\n\tX-Evil: two\r\nConnection: close\r\n\r\n"
    async with serving(policy_for(origin)) as client:
        await exchange(client, raw)
    assert b"\r\nx-a: one x-evil: two\r\n" in origin.requests[0].lower().replace(b"\t", b" ")


async def test_a_websocket_is_an_ordinary_request_and_a_switch_of_protocols_is_refused(origin):
    async def switch(_reader, writer):
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n\x81\x05hello")

    origin.answers["/"] = switch
    asks = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x")
    async with serving(policy_for(origin)) as client:
        reply = await client.get(url(origin), *asks)
        assert reply.startswith(b"HTTP/1.1 502 NetworkUnreachable"), reply
        assert b"hello" not in reply
    assert b"upgrade" not in origin.requests[0].lower()


async def test_expect_100_continue_is_answered_by_the_proxy(origin):
    async with serving(policy_for(origin)) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        writer.write(
            f"POST {url(origin)} HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
            f"Expect: 100-continue\r\nConnection: close\r\n\r\n".encode()
        )
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        writer.write(b"hello")
        assert (await reader.read()).endswith(b"ok")
        writer.close()
    assert origin.requests[0].endswith(b"hello")
    assert b"expect" not in origin.requests[0].lower()


async def test_a_connect_with_a_body_opens_no_tunnel_for_it(origin):
    place = f"{NAME}:{origin.port}"
    async with serving(policy_for(origin)) as client:
        raw = f"CONNECT {place} HTTP/1.1\r\nHost: x\r\nContent-Length: 18\r\n\r\nGET / HTTP/1.1\r\n\r\n"
        reply = await exchange(client, raw)
        assert b"ok" not in reply
        assert b"200 OK" in await client.get(url(origin))
    assert len(origin.requests) == 1


async def test_a_whole_url_inside_a_tunnel_is_refused(origin):
    async with serving(policy_for(origin, inspect_tls=True)) as client:
        trust = ssl.create_default_context(cadata=client.gateway.guest_params()["ca"])
        place = f"{NAME}:{origin.port}"
        for target in (f"http://evil.test:{origin.port}/", f"https://{place}/", "*", "evil.test:1"):
            reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
            writer.write(f"CONNECT {place} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
            await writer.start_tls(trust, server_hostname=NAME)
            writer.write(f"GET {target} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode())
            assert (await reader.read())[9:12] == b"400"
            writer.close()
    assert not origin.connections


async def test_a_client_that_speaks_http_2_alone_is_refused_inside_tls(origin):
    async with serving(policy_for(origin, inspect_tls=True)) as client:
        trust = ssl.create_default_context(cadata=client.gateway.guest_params()["ca"])
        trust.set_alpn_protocols(["h2"])
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        writer.write(f"CONNECT {NAME}:{origin.port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(OSError):
            await writer.start_tls(trust, server_hostname=NAME)
            assert writer.get_extra_info("ssl_object").selected_alpn_protocol() is None
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
            assert b"200" not in (await reader.read())[:13]
        writer.close()
        assert len(client.refusals()) == 1
    assert not origin.connections


async def test_headers_that_name_another_method_or_path_are_dropped_where_those_are_checked(origin):
    asks = ("X-HTTP-Method-Override: DELETE", "X-Original-URL: /admin", "X-Rewrite-URL: /admin")
    async with serving(policy_for(origin, methods=["GET"], paths=["/v1/*"])) as client:
        await client.get(url(origin, "/v1/a"), *asks)
    async with serving(policy_for(origin)) as client:
        await client.get(url(origin, "/v1/a"), *asks)
    checked, free = (request.lower() for request in origin.requests)
    assert b"delete" not in checked
    assert b"admin" not in checked
    assert b"delete" in free
    assert free.count(b"admin") == 2


@pytest.mark.parametrize("path", ["/v1/a#/../admin", "/v1/a%00", "/v1/a%0d%0aX:y", "/v1/%2E%2E/a"])
async def test_a_path_with_a_fragment_or_a_control_character_is_refused_under_paths(origin, path):
    async with serving(policy_for(origin, paths=["/v1/*"])) as client:
        reply = await client.get(url(origin, path))
        assert b" 403 NetworkNotAllowed: this sandbox may ask for the paths /v1/*" in reply
    assert not origin.connections


async def test_trace_is_refused_in_any_spelling(origin):
    async with serving(policy_for(origin)) as client:
        for method in ("TRACE", "trace", "Track"):
            assert b" 403 " in (await client.get(url(origin), method=method))[:20]
    assert not origin.connections


async def test_a_guest_that_drips_its_request_loses_the_connection(origin, monkeypatch):
    """The time is for the whole head: a byte now and then does not buy more of it."""
    monkeypatch.setattr("atoll.egress.proxy.IDLE_SECONDS", 0.2)
    async with serving(policy_for(origin)) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        ended = asyncio.ensure_future(reader.read())
        for byte in b"GET http://api.test/" * 100:
            if ended.done():
                break
            with contextlib.suppress(OSError):
                writer.write(bytes([byte]))
                await writer.drain()
            await asyncio.sleep(0.01)
        assert ended.done()
        writer.close()


async def test_a_guest_that_drips_a_body_is_cut_off_after_max_seconds(origin):
    async with serving(policy_for(origin, max_seconds=0.2)) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        head = f"POST {url(origin)} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
        writer.write(head.encode() + b"x")
        assert b"max_seconds=0.2" in await reader.read()
        writer.close()
    assert not origin.requests


# Servers


@pytest.mark.parametrize(
    "said",
    [
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
        "HTTP/1.1 099 Odd\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\x00b\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\n: none\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: " + "a" * 200_000 + "\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\n" * 2000,
    ],
)
async def test_an_answer_that_can_be_read_in_two_ways_is_not_passed_on(origin, said):
    async def odd(_reader, writer):
        writer.write(said.encode())
        writer.close()

    origin.answers["/odd"] = odd
    async with serving(policy_for(origin)) as client:
        reply = await client.get(url(origin, "/odd"))
        assert reply.startswith(b"HTTP/1.1 502 NetworkUnreachable"), reply[:200]
        assert client.share.take().requests[0].failed
        assert b"200 OK" in await client.get(url(origin))


async def test_an_answer_with_a_length_beside_its_chunks_has_one_reading(origin):
    async def both(_reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"2\r\nok\r\n0\r\n\r\n")

    origin.answers["/"] = both
    async with serving(policy_for(origin)) as client:
        reply = await client.get(url(origin))
    assert b"content-length" not in reply.lower()
    assert reply.endswith(b"2\r\nok\r\n0\r\n\r\n")


async def test_what_a_server_sends_beyond_its_answer_is_not_taken_for_the_next(origin):
    """A poisoned connection: the second answer was sent before the second request."""
    poison = answer(b"one") + answer(b"poison")
    origin.answers |= {"/one": poison, "/two": answer(b"two")}
    async with serving(policy_for(origin)) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        for path, body in (("/one", b"one"), ("/two", b"two")):
            writer.write(f"GET {url(origin, path)} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            assert await reader.readexactly(len(body)) == body
        writer.close()
    assert origin.connections == 2


async def test_redirects_that_fetch_follows_are_checked_and_keep_credentials_at_home(origin):
    other = f"http://other.test:{origin.port}"
    origin.answers |= {
        "/out": answer(b"", "302 Found", Location=f"{other}/in"),
        "/private": answer(b"", "302 Found", Location=f"http://169.254.169.254:{origin.port}/"),
        "/file": answer(b"", "302 Found", Location="file:///etc/passwd"),
        "/loop": answer(b"", "302 Found", Location="/loop"),
    }
    policy = NetworkPolicy(
        [f"*.test:{origin.port}", f"169.254.169.254:{origin.port + 1}"], private=["127.0.0.0/8"]
    )
    async with serving(policy) as client:
        own = {"Authorization": "Bearer of-the-guest", "Cookie": "a=b", "X-Kept": "yes"}
        got = await client.gateway.fetch(url(origin, "/out"), headers=own)
        assert got["url"] == f"{other}/in"
        for path, words in (("/private", "169.254.169.254"), ("/file", "whole URL"),
                            ("/loop", "redirects")):  # fmt: skip
            with pytest.raises(Exception, match=words):
                await client.gateway.fetch(url(origin, path))
    first, second = origin.requests[:2]
    assert b"of-the-guest" in first
    assert b"of-the-guest" not in second
    assert b"a=b" not in second
    assert b"yes" in second


@pytest.mark.parametrize(
    "address",
    ["64:ff9b::7f00:1", "2002:7f00:1::", "::ffff:0:127.0.0.1", "::127.0.0.1", "fc00::1", "fec0::1",
     "224.0.0.1", "255.255.255.255", "192.0.0.1", "198.18.0.1", "240.0.0.1", "ff02::1", "fe80::1"],
)  # fmt: skip
async def test_addresses_that_hide_or_are_no_host_are_refused(origin, address):
    async with serving([f"{NAME}:{origin.port}"], resolver_of(address)) as client:
        assert b" 403 NetworkNotAllowed" in await client.get(url(origin))
    assert not origin.connections
