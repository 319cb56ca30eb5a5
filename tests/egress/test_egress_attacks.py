"""Attacks of a guest on the proxy, and of servers through it: each is refused, and the proxy lives."""

from __future__ import annotations

import asyncio
import os
import ssl

import pytest
from egresskit import NAME, Client, Origin, answer, authority, policy_for, resolver_of, serving

from atoll.network import NetworkPolicy

PUBLIC = "93.184.216.34"


async def alive(client: Client, origin: Origin) -> bool:
    return b"200 OK" in await client.get(f"http://{NAME}:{origin.port}/alive")


# Addresses


async def test_a_name_that_resolves_to_a_private_address_is_refused(origin):
    for address in ("127.0.0.1", "10.0.0.1", "169.254.169.254", "192.168.1.1", "::1", "fe80::1",
                    "::ffff:127.0.0.1", "100.64.0.1", "0.0.0.0"):  # fmt: skip
        async with serving([f"{NAME}:{origin.port}"], resolver_of(address)) as client:
            assert b" 403 NetworkNotAllowed" in await client.get(f"http://{NAME}:{origin.port}/")
    assert not origin.connections


async def test_dns_rebinding_is_refused_at_the_next_connection(origin):
    now = ["127.0.0.1"]

    def rebinding(host, port, *_rest):
        return resolver_of(*now)(host, port)

    policy = policy_for(origin, private=["127.0.0.1/32"])
    async with serving(policy, rebinding) as client:
        assert await alive(client, origin)
        now[:] = ["169.254.169.254"]
        assert b" 403 NetworkNotAllowed" in await client.get(f"http://{NAME}:{origin.port}/")


async def test_a_name_is_looked_up_once_for_a_connection(origin):
    resolver = resolver_of("127.0.0.1")
    async with serving(policy_for(origin), resolver) as client:
        await client.get(f"http://{NAME}:{origin.port}/")
    assert resolver.asked == [NAME]


async def test_a_name_with_a_public_and_a_private_address_is_refused(origin):
    resolver = resolver_of(PUBLIC, "127.0.0.1")
    async with serving([f"{NAME}:{origin.port}"], resolver) as client:
        assert b" 403 NetworkNotAllowed" in await client.get(f"http://{NAME}:{origin.port}/")


@pytest.mark.parametrize(
    "spelling",
    ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "127.0.0.1.", "[::1]", "[::ffff:7f00:1]",
     "[::ffff:127.0.0.1]", "localhost", "LOCALHOST.", "0", "[0:0:0:0:0:0:0:1]", "127.0.0.1.nip.io"],
)  # fmt: skip
async def test_spellings_of_loopback_are_refused_where_every_public_host_is_allowed(
    origin, spelling
):
    resolver = resolver_of("127.0.0.1")
    async with serving([f"*:{origin.port}"], resolver) as client:
        reply = await client.get(f"http://{spelling}:{origin.port}/")
    assert reply[9:12] in (b"403", b"400")
    assert not origin.connections


async def test_a_named_address_gives_no_right_to_a_name(origin):
    """127.0.0.1 is allowed; a name that resolves to it is not, though its host is."""
    policy = NetworkPolicy([f"127.0.0.1:{origin.port}", f"*.test:{origin.port}"])
    async with serving(policy) as client:
        assert b" 403 NetworkNotAllowed" in await client.get(f"http://a.test:{origin.port}/")
        assert b"200 OK" in await client.get(f"http://127.0.0.1:{origin.port}/")


async def test_a_redirect_to_a_private_address_is_refused_when_it_is_followed(origin):
    target = f"http://169.254.169.254:{origin.port}/latest/meta-data"
    origin.answers["/go"] = answer(b"", "302 Found", Location=target)
    async with serving(policy_for(origin)) as client:
        reply = await client.get(f"http://{NAME}:{origin.port}/go")
        assert b"302 Found" in reply
        assert b" 403 NetworkNotAllowed" in await client.get(target)


# Who is meant


@pytest.mark.parametrize(
    "target",
    ["http://api.test@evil.test:{port}/", "http://evil.test:{port}#@api.test/", "//api.test/",
     "ftp://api.test:{port}/", "http:///", "/", "api.test:{port}", "http://api.test:{port}:80/",
     "http://api.test:99999/", "http://api%2etest:{port}/", "file:///etc/passwd", "http://[::1/",
     "http://evil.test\\@api.test:{port}/"],
)  # fmt: skip
async def test_a_target_that_can_be_read_in_two_ways_is_refused(origin, target):
    async with serving(policy_for(origin)) as client:
        reply = await client.get(target.format(port=origin.port))
        assert reply[9:12] in (b"400", b"403"), reply
        assert await alive(client, origin)
    assert origin.connections == 1


async def test_the_host_header_follows_the_url_that_was_checked(origin):
    async with serving(policy_for(origin)) as client:
        await client.say(
            f"GET http://{NAME}:{origin.port}/ HTTP/1.1\r\nHost: evil.test\r\n"
            f"Connection: close\r\n\r\n".encode()
        )
    assert f"\r\nhost: {NAME}:{origin.port}\r\n".encode() in origin.requests[0].lower()
    assert b"evil.test" not in origin.requests[0]


async def test_a_second_request_on_a_connection_is_checked_too(origin):
    first = f"GET http://{NAME}:{origin.port}/ HTTP/1.1\r\nHost: x\r\n\r\n"
    second = f"GET http://evil.test:{origin.port}/ HTTP/1.1\r\nHost: x\r\n\r\n"
    async with serving(policy_for(origin)) as client:
        reply = await client.say((first + second).encode())
        assert len(client.refusals()) == 1
    assert reply.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 403 NetworkNotAllowed" in reply
    assert len(origin.requests) == 1


# Smuggling and injection


@pytest.mark.parametrize(
    "headers",
    [
        "Content-Length: 4\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 4",
        "Content-Length: 4\r\nContent-Length: 5",
        "Content-Length: 4, 5",
        "Content-Length: +4",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding : chunked",
        "X: a\x00b",
        "X: a\rb",
        ": no name",
        "Host: other.test",
    ],
)
async def test_a_request_that_servers_would_read_in_two_ways_is_refused(origin, headers):
    raw = (
        f"POST http://{NAME}:{origin.port}/ HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\n0\r\n\r\nGET /"
    )
    async with serving(policy_for(origin)) as client:
        reply = await client.say(raw.encode("latin-1"))
        assert reply[9:12] in (b"400", b"501"), reply
        assert await alive(client, origin)
    assert len(origin.requests) == 1


async def test_a_chunked_request_is_written_anew(origin):
    got = []

    async def read(reader, writer):
        got.append(await reader.readuntil(b"0\r\n\r\n"))
        writer.write(answer())

    origin.answers["/"] = read
    body = "3;ext=1\r\nabc\r\n0\r\nTrailer: smuggled\r\n\r\n"
    async with serving(policy_for(origin)) as client:
        await client.say(
            f"POST http://{NAME}:{origin.port}/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            f"Transfer-Encoding: chunked\r\n\r\n{body}".encode()
        )
    assert got == [b"3\r\nabc\r\n0\r\n\r\n"]


async def test_headers_about_the_connection_are_not_passed_on(origin):
    async with serving(policy_for(origin)) as client:
        await client.get(
            f"http://{NAME}:{origin.port}/",
            "Proxy-Authorization: Basic eDp5", "Upgrade: websocket", "Keep-Alive: 5", "TE: trailers",
            "Connection: X-Private", "X-Private: 1",
        )  # fmt: skip
    sent = origin.requests[0].lower()
    for name in (b"proxy-authorization", b"upgrade", b"keep-alive", b"te:", b"x-private"):
        assert name not in sent


async def test_garbage_counts_as_a_request_and_harms_nobody(origin):
    async with serving(policy_for(origin, max_requests=20)) as client:
        for piece in (os.urandom(3000), b"\x16\x03\x01" + os.urandom(500), b"SSH-2.0-x\r\n\r\n",
                      b"\r\n\r\n\r\n\x00", b"GET " + b"a" * 200_000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n"):  # fmt: skip
            await client.say(piece, end=True)
        assert len(client.refusals()) >= 5
        assert await alive(client, origin)


async def test_a_server_that_answers_in_garbage_is_said_in_words(origin):
    async def garbage(_reader, writer):
        writer.write(b"\x00\x01not http at all\r\n\r\n")

    async def nothing(_reader, writer):
        writer.close()

    origin.answers |= {"/garbage": garbage, "/nothing": nothing}
    async with serving(policy_for(origin)) as client:
        for path in origin.answers:
            reply = await client.get(f"http://{NAME}:{origin.port}{path}")
            assert reply.startswith(b"HTTP/1.1 502 NetworkUnreachable"), reply
        assert await alive(client, origin)


# TLS


@pytest.fixture
async def tls_origin():
    """An origin that speaks TLS as NAME, and a context that trusts it."""
    issuer = authority()
    made = Origin()
    context = issuer._make_context(NAME)
    context.sni_callback = None
    async with made.serving(context) as origin:
        origin.trust = ssl.create_default_context(cadata=issuer.pem)
        yield origin


async def connect(client: Client, place: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
    writer.write(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    return reader, writer


async def https(client: Client, place: str, trust: ssl.SSLContext, name: str | None, path="/"):
    """GET through CONNECT, with that TLS server name; the answer, or the error."""
    reader, writer = await connect(client, place)
    try:
        await writer.start_tls(trust, server_hostname=name)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n\r\n".encode())
        return await reader.read()
    finally:
        writer.close()


async def test_tls_passes_through_untouched_and_is_listed_while_it_is_open(tls_origin):
    place = f"{NAME}:{tls_origin.port}"
    async with serving(policy_for(tls_origin)) as client:
        reply = await https(client, place, tls_origin.trust, NAME)
        (one,) = client.use().requests
        assert (one.method, one.host, one.status) == ("CONNECT", NAME, None)
        assert one.sent > 200
        assert one.received > 200
    assert reply.endswith(b"ok")


async def test_a_tls_server_name_other_than_the_connect_name_is_refused(tls_origin):
    place = f"{NAME}:{tls_origin.port}"
    tls_origin.trust.check_hostname = False
    async with serving(policy_for(tls_origin)) as client:
        for name in ("evil.test", ""):
            with pytest.raises((ssl.SSLError, OSError, ValueError)):
                await https(client, place, tls_origin.trust, name or "127.0.0.1")
            assert "TLS server name" in client.refusals()[0]
    assert not tls_origin.requests


async def test_a_tunnel_carries_nothing_but_tls(origin):
    place = f"{NAME}:{origin.port}"
    async with serving(policy_for(origin)) as client:
        for said in (
            b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n",
            b"SSH-2.0-x\r\n",
            b"\x16\x03\x01\x00",
        ):
            reader, writer = await connect(client, place)
            writer.write(said)
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
            assert client.refusals() == ["a connection by CONNECT must carry TLS"]
    assert not origin.requests


async def test_a_request_for_another_host_inside_an_inspected_tunnel_is_refused(origin):
    place = f"{NAME}:{origin.port}"
    async with serving(policy_for(origin, inspect_tls=True)) as client:
        trust = ssl.create_default_context(cadata=client.gateway.guest_params()["ca"])
        for host in ("evil.test", f"evil.test:{origin.port}", f"{NAME}:1"):
            reader, writer = await connect(client, place)
            await writer.start_tls(trust, server_hostname=NAME)
            writer.write(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            assert b" 403 NetworkNotAllowed: a connection to" in await reader.read()
            writer.close()
    assert not origin.connections


async def test_inspected_https_is_verified_against_the_system_and_read(
    tls_origin, monkeypatch, tmp_path
):
    place, secret = f"{NAME}:{tls_origin.port}", "sk-inspected-secret"
    policy = policy_for(
        tls_origin, inspect_tls=True, paths=["/v1/*"],
        headers={NAME: {"Authorization": f"Bearer {secret}"}},
    )  # fmt: skip
    async with serving(policy) as client:
        trust = ssl.create_default_context(cadata=client.gateway.guest_params()["ca"])
        untrusted = await https(client, place, trust, NAME, "/v1/a")
        assert b"502 NetworkUnreachable" in untrusted
        assert b"certificate is not trusted" in untrusted
        client.gateway._proxy.parts.connector._tls = tls_origin.trust
        tls_origin.answers["/v1/a"] = answer(f"you said {secret}".encode())
        reply = await https(client, place, trust, NAME, "/v1/a")
        assert reply.endswith(b"you said " + b"*" * len(secret))
        assert b" 403 NetworkNotAllowed" in await https(client, place, trust, NAME, "/v2/a")
        used = client.use().requests
    assert [(one.method, one.path, one.status, one.redacted) for one in used] == [
        ("GET", "/v1/a", None, 0), ("GET", "/v1/a", 200, 1), ("GET", "/v2/a", None, 0),
    ]  # fmt: skip
    assert f"authorization: bearer {secret}".encode() in tls_origin.requests[0].lower()


async def test_the_inspected_side_refuses_another_server_name(origin):
    async with serving(policy_for(origin, inspect_tls=True)) as client:
        trust = ssl.create_default_context(cadata=client.gateway.guest_params()["ca"])
        with pytest.raises(ssl.SSLError):
            await https(client, f"{NAME}:{origin.port}", trust, "evil.test")
        assert "TLS with the guest failed" in client.refusals()[0]
