"""Headers that the host adds: to their host alone, and taken out of whatever comes back."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import zlib

import pytest
from egresskit import NAME, answer, policy_for, resolver_of, serving

from atoll.egress.credentials import Secrets
from atoll.egress.rules import RefusedError
from atoll.network import NetworkPolicy

SECRET = 'sk-"very/secret"+value'
HEADER = f"Bearer {SECRET}"


def with_secret(origin, **fields):
    place = f"{NAME}:{origin.port}"
    return policy_for(origin, headers={place: {"Authorization": HEADER}}, **fields)


async def test_the_header_is_added_in_place_of_the_guests(origin):
    async with serving(with_secret(origin)) as client:
        await client.get(
            f"http://{NAME}:{origin.port}/",
            "AUTHORIZATION: Bearer mine",
            "Connection: Authorization",
        )
    head = origin.requests[0].decode()
    assert head.lower().count("authorization") == 1
    assert HEADER in head


async def test_another_host_never_gets_it(origin):
    policy = NetworkPolicy(
        [f"*.test:{origin.port}"],
        private=["127.0.0.0/8"],
        headers={f"{NAME}:{origin.port}": {"Authorization": HEADER}},
    )
    async with serving(policy) as client:
        for host in ("other.test", f"sub.{NAME}"):
            reply = await client.get(f"http://{host}:{origin.port}/", f"Host: {NAME}:{origin.port}")
            assert b"400" in reply[:13]  # two Host headers
            await client.get(f"http://{host}:{origin.port}/")
    assert len(origin.requests) == 2
    assert not any(b"sk-" in request for request in origin.requests)


async def test_a_redirect_to_another_host_takes_no_secret_along(origin):
    policy = NetworkPolicy(
        [f"{NAME}:{origin.port}", f"other.test:{origin.port}"],
        private=["127.0.0.0/8"],
        headers={f"{NAME}:{origin.port}": {"Authorization": HEADER}},
    )
    target = f"http://other.test:{origin.port}/there"
    origin.answers["/go"] = answer(b"", "302 Found", Location=target)
    async with serving(policy) as client:
        await client.get(f"http://{NAME}:{origin.port}/go")
        await client.get(target)
    assert b"sk-" in origin.requests[0]
    assert b"sk-" not in origin.requests[1]


@pytest.mark.parametrize(
    "form",
    [
        SECRET, HEADER, json.dumps(SECRET), "sk-%22very%2Fsecret%22%2Bvalue",
        "sk-%22very%2fsecret%22%2bvalue", "sk-%22very/secret%22+value",
        r"sk-\u0022very\u002fsecret\u0022\u002Bvalue", r"sk-\"very\/secret\"+value",
        r"sk\x2d\x22very/secret\x22+value", "sk-&quot;very/secret&quot;+value",
        "sk-&#34;very&#x2f;secret&#x0022;&#43;value", "Bearer+sk-%22very%2Fsecret%22%2Bvalue",
    ],
)  # fmt: skip
async def test_an_echoed_secret_is_taken_out_of_body_and_headers(origin, form):
    origin.answers["/"] = answer(f"<{form}>".encode(), X_Echo=f"got {form}")
    async with serving(with_secret(origin)) as client:
        reply = await client.get(f"http://{NAME}:{origin.port}/")
        (one,) = client.use().requests
    assert b"secret" not in reply
    assert b"**>" in reply or b'**">' in reply
    assert one.redacted == 2


@pytest.mark.parametrize("before", ["", "a", "ab", "abc", "Authorization: Bearer "])
@pytest.mark.parametrize("after", ["", "z", "zz"])
def test_a_secret_in_base64_or_hexadecimal_is_taken_out(before, after):
    policy = NetworkPolicy(["a.test:81"], headers={"a.test:81": {"Authorization": HEADER}})
    whole = f"{before}{SECRET}{after}".encode()
    for encode in (base64.b64encode, base64.urlsafe_b64encode, base64.b16encode):
        redactor = Secrets(policy).redactor()
        seen = redactor.whole(b"<" + encode(whole) + b">")
        assert redactor.count == 1, seen
        assert len(seen.replace(b"*", b"")) <= len(encode(before.encode() + after.encode())) + 8
    assert Secrets(policy).redactor().whole(whole.hex().encode()).count(b"*") >= 2 * len(SECRET)


async def test_a_secret_in_trailers_and_early_hints_never_arrives(origin):
    async def both(_reader, writer):
        writer.write(f"HTTP/1.1 103 Early Hints\r\nLink: <{SECRET}>\r\n\r\n".encode())
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Echo\r\n\r\n")
        writer.write(f"2\r\nok\r\n0\r\nX-Echo: {SECRET}\r\n\r\n".encode())

    origin.answers["/"] = both
    async with serving(with_secret(origin)) as client:
        reply = await client.get(f"http://{NAME}:{origin.port}/")
    assert b"secret" not in reply
    assert b"ok" in reply


async def test_a_secret_is_found_across_the_pieces_of_a_packed_stream(origin):
    packed = gzip.compress(f"before {SECRET} after".encode())

    async def drip(_reader, writer):
        writer.write(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Encoding: gzip\r\n\r\n"
        )
        for byte in packed:
            writer.write(b"1\r\n%c\r\n" % byte)
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    origin.answers["/"] = drip
    async with serving(with_secret(origin)) as client:
        reply = await client.get(f"http://{NAME}:{origin.port}/")
        assert client.use().requests[0].redacted == 1
    assert b"secret" not in reply


async def test_a_secret_in_pieces_is_taken_out(origin):
    text = f"before {SECRET} after".encode()

    async def drip(_reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for byte in text:
            writer.write(b"1\r\n%c\r\n" % byte)
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    origin.answers["/"] = drip
    async with serving(with_secret(origin)) as client:
        reply = await client.get(f"http://{NAME}:{origin.port}/")
        assert client.use().requests[0].redacted == 1
    assert b"secret" not in reply
    body = reply.partition(b"\r\n\r\n")[2]
    assert b"before" in b"".join(body.split(b"\r\n")[1::2])


@pytest.mark.parametrize(("name", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_a_packed_answer_is_unpacked_and_searched(origin, name, pack):
    packed = pack(b"x" * 300_000 + SECRET.encode())
    origin.answers["/"] = answer(packed, Content_Encoding=name)
    async with serving(with_secret(origin)) as client:
        reply = await client.get(f"http://{NAME}:{origin.port}/", "Accept-Encoding: gzip")
    assert b"\r\naccept-encoding: identity\r\n" in origin.requests[0].lower()
    assert b"content-encoding" not in reply.lower()
    assert b"*" * len(SECRET) in reply
    assert b"secret" not in reply


async def test_an_answer_that_cannot_be_searched_is_refused(origin):
    for packing in ("br", "zstd", "gzip, br", "identity, gzip", "compress"):
        origin.answers["/"] = answer(b"\x0b\x02\x80abc\x03", Content_Encoding=packing)
        async with serving(with_secret(origin)) as client:
            reply = await client.get(f"http://{NAME}:{origin.port}/")
        words = b"HTTP/1.1 502 NetworkNotAllowed: the server sent an encoding other than gzip"
        assert reply.startswith(words), reply


async def test_a_bomb_is_stopped_by_max_bytes(origin):
    origin.answers["/"] = answer(gzip.compress(bytes(8 << 20)), Content_Encoding="gzip")
    async with serving(with_secret(origin, max_bytes=1 << 20)) as client:
        reply = await client.get(f"http://{NAME}:{origin.port}/")
        assert client.refusals() == [f"this sandbox has used its max_bytes={1 << 20}"]
    assert len(reply) < 2 << 20


async def test_halves_of_an_answer_cannot_be_asked_for(origin):
    async with serving(with_secret(origin)) as client:
        await client.get(f"http://{NAME}:{origin.port}/", "Range: bytes=0-9")
    assert b"range" not in origin.requests[0].lower()


async def test_a_secret_in_the_reason_and_in_a_location_is_taken_out(origin):
    origin.answers["/"] = answer(b"", f"401 bad key {SECRET}", Location=f"/?k={SECRET}")
    async with serving(with_secret(origin)) as client:
        assert b"secret" not in await client.get(f"http://{NAME}:{origin.port}/")


def test_every_split_of_a_stream_gives_the_same_bytes():
    secrets = Secrets(
        NetworkPolicy(["a.test:81"], headers={"a.test:81": {"A": "abcd", "B": "abcdefgh"}})
    )
    text = b"abcd abcdefgh abcabcd abcdefg"
    whole = secrets.redactor().whole(text)
    assert whole == b"**** ******** abc**** ****efg"
    for size in range(1, len(text)):
        one = secrets.redactor()
        pieces = [one.feed(text[at : at + size]) for at in range(0, len(text), size)]
        assert b"".join(pieces) + one.feed(b"", last=True) == whole
        assert one.count == 4


def test_a_basic_credential_is_known_in_plain_too():
    secrets = Secrets(
        NetworkPolicy(
            ["a.test:81"], headers={"a.test:81": {"Authorization": "Basic dXNlcjpwYXNzd29yZA=="}}
        )
    )
    assert secrets.redactor().whole(b"user:password password") == b"************* ********"


async def test_no_secret_is_in_what_the_guest_is_told(origin):
    async with serving(with_secret(origin), resolver_of("127.0.0.1")) as client:
        told = repr((client.gateway.guest_params(), client.gateway.environment({})))
        assert "secret" not in told
        reply = await client.get("http://evil.test/")
        assert b"secret" not in reply


MALFORMED = {
    "a header with a NUL": b"HTTP/1.1 200 OK\r\nX-Echo: \0%s\r\n\r\n",
    "a header without a colon": b"HTTP/1.1 200 OK\r\n%s\r\n\r\n",
    "a status line": b"HTTP/1.1 %s\r\n\r\n",
    "a version": b"%s 200 OK\r\n\r\n",
    "a length": b"HTTP/1.1 200 OK\r\nContent-Length: %s\r\n\r\n",
    "a transfer encoding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: %s\r\n\r\n",
    "a content encoding": b"HTTP/1.1 200 OK\r\nContent-Encoding: %s\r\n\r\n",
    "a chunk's size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%s\r\n",
    "a chunk's extension": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=%s\r\nok\r\n0\r\n\r\n",
    "a trailer": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: \0%s\r\n\r\n",
    "a header's name": b"HTTP/1.1 200 OK\r\nX-%s: y\r\nContent-Length: 0\r\n\r\n",
    "a broken gzip": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 9\r\n\r\n%s",
    "a huge header": b"HTTP/1.1 200 OK\r\nX-Echo: " + b"x" * 70_000 + b"%s\r\n\r\n",
    "many headers": b"HTTP/1.1 200 OK\r\n" + b"X-Echo: %s\r\n" * 2 + b"A: b\r\n" * 300 + b"\r\n",
}


@pytest.mark.parametrize("where", MALFORMED)
@pytest.mark.parametrize("way", ["proxy", "fetch"])
async def test_no_part_of_a_malformed_answer_shows_a_secret(origin, where, way):
    token = "tokenAsecretB0123456789"
    place = f"{NAME}:{origin.port}"

    async def reply(_reader, writer):
        writer.write(MALFORMED[where].replace(b"%s", token.encode()))
        await writer.drain()
        writer.close()

    origin.answers["/"] = reply
    policy = policy_for(origin, headers={place: {"Authorization": f"Bearer {token}"}})
    async with serving(policy) as client:
        if way == "proxy":
            seen = repr(await client.get(f"http://{place}/"))
        else:
            try:
                seen = repr(await client.gateway.fetch(f"http://{place}/"))
            except RefusedError as exc:
                seen = f"{exc!r} {exc} {exc.__cause__!r} {exc.__context__!r}"
        seen += repr(client.use())
    assert origin.requests
    assert "secretb0" not in seen.lower()


async def test_a_failed_answer_has_a_fixed_text(origin):
    origin.answers["/"] = b"HTTP/1.1 200 OK\r\nX-Echo: \0what the server says\r\n\r\n"
    async with serving(with_secret(origin)) as client:
        reply = await client.get(f"http://{NAME}:{origin.port}/")
        (request,) = client.use().requests
    assert request.failed == f"{NAME}:{origin.port} failed: its response is not valid HTTP/1.1"
    assert f"502 NetworkUnreachable: {request.failed}\r\n".encode() in reply
    assert b"what the server" not in reply


async def test_a_large_header_or_body_does_not_hold_up_the_event_loop(origin):
    """The loop is idle while threads search, so that it counts many turns; before, it had few."""
    secret, place = "-" * 2000, f"{NAME}:{origin.port}"
    origin.answers["/"] = answer(b"%2d" * 700_000, X_Large="-" * 15_000)
    policy = policy_for(origin, headers={place: {"Authorization": secret}})
    turns, over = 0, asyncio.Event()

    async def count_turns():
        nonlocal turns
        while not over.is_set():
            await asyncio.sleep(0.001)
            turns += 1

    async with serving(policy) as client:
        counting = asyncio.ensure_future(count_turns())
        reply = await client.get(f"http://{place}/")
        over.set()
        await counting
    assert b"%2d" not in reply
    assert turns > 20


@pytest.mark.parametrize("name", ["Authorization", "AUTHORIZATION", "authorization"])
async def test_a_header_under_another_spelling_of_the_name_is_dropped(origin, name):
    place = f"{NAME}:{origin.port}"
    policy = policy_for(origin, headers={place: {name: HEADER, "X-Api-Key": "k" * 20}})
    others = ("X_Api_Key: mine", "x.api_key: mine", "Accept_Encoding: br", "Content_Length: 7",
              "Transfer_Encoding: chunked", "HOST_: x", "Range_: bytes=0-1")  # fmt: skip
    async with serving(policy) as client:
        reply = await client.get(f"http://{place}/", *others)
    assert reply.startswith(b"HTTP/1.1 200")
    head = origin.requests[0].lower()
    for gone in (b"mine", b"br\r", b"content_length", b"transfer_encoding"):
        assert gone not in head


@pytest.mark.parametrize(
    "header",
    ["X_HTTP_Method_Override", "x-http-method-override", "X.HTTP.Method", "X-Method_Override",
     "X-HTTP_METHOD-OVERRIDE", "HTTP-Method-Override", "X_Original_URL", "X-Rewrite-Url",
     "X-Original-URI", "X_Forwarded_Prefix", "X-Forwarded-Uri", "X|Original|Path"],
)  # fmt: skip
async def test_no_spelling_of_an_override_reaches_the_server(origin, header):
    async with serving(policy_for(origin, methods=["GET"], paths=["/"])) as client:
        await client.get(f"http://{NAME}:{origin.port}/", f"{header}: evil", "X-Other: kept")
    assert b"evil" not in origin.requests[0]
    assert b"kept" in origin.requests[0]


def test_the_values_of_a_cookie_are_searched_alone():
    secrets = Secrets(
        NetworkPolicy(
            ["a.test:81"], headers={"a.test:81": {"Cookie": "id=0123456789ab; csrf=zyxwvutsrq"}}
        )
    )
    shown = secrets.redactor().whole(b'{"csrf": "zyxwvutsrq", "id": "0123456789ab"}')
    assert shown == b'{"csrf": "**********", "id": "************"}'
