"""Each limit of a NetworkPolicy, hit."""

from __future__ import annotations

import asyncio

from egresskit import NAME, answer, policy_for, serving

from atoll.egress.proxy import SPENT_PAUSE


async def test_max_requests_counts_refused_ones_and_says_so(origin):
    async with serving(policy_for(origin, max_requests=2)) as client:
        await client.get("http://evil.test/")
        assert b"200 OK" in await client.get(f"http://{NAME}:{origin.port}/")
        reply = await client.get(f"http://{NAME}:{origin.port}/")
        assert reply.startswith(
            b"HTTP/1.1 429 NetworkNotAllowed: this sandbox has used its max_requests=2"
        )
    assert len(origin.requests) == 1


async def test_max_bytes_cuts_an_answer_off_and_refuses_the_next(origin):
    origin.answers["/"] = answer(b"x" * 300_000)
    async with serving(policy_for(origin, max_bytes=100_000)) as client:
        reply = await client.get(f"http://{NAME}:{origin.port}/")
        assert len(reply) < 300_000
        assert b"429" in await client.get(f"http://{NAME}:{origin.port}/")
        assert client.refusals() == ["this sandbox has used its max_bytes=100000"] * 2


async def test_max_bytes_counts_what_is_sent(origin):
    async with serving(policy_for(origin, max_bytes=100_000)) as client:
        await client.get(f"http://{NAME}:{origin.port}/", method="POST", body=b"x" * 300_000)
        assert client.refusals() == ["this sandbox has used its max_bytes=100000"]
    assert not origin.requests


async def test_a_server_that_never_answers_is_given_up_after_max_seconds(origin):
    async def never(_reader, _writer):
        await asyncio.sleep(60)

    origin.answers["/"] = never
    async with serving(policy_for(origin, max_seconds=0.1)) as client:
        reply = await client.get(f"http://{NAME}:{origin.port}/")
    assert reply.startswith(b"HTTP/1.1 504 NetworkNotAllowed: api.test:")
    assert b"took longer than max_seconds=0.1" in reply


async def test_a_server_that_drips_is_cut_off_after_max_seconds(origin):
    async def drip(_reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    origin.answers["/"] = drip
    async with serving(policy_for(origin, max_seconds=0.2)) as client:
        assert (await client.get(f"http://{NAME}:{origin.port}/")).endswith(b"x")
        assert "max_seconds=0.2" in client.refusals()[0]


async def test_a_guest_that_does_not_read_is_cut_off_after_max_seconds(origin):
    origin.answers["/"] = answer(b"x" * (32 << 20))
    async with serving(policy_for(origin, max_seconds=0.3)) as client:
        _, writer = await asyncio.open_connection("127.0.0.1", client.port, limit=1)
        writer.transport.pause_reading()
        writer.write(f"GET http://{NAME}:{origin.port}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        async with asyncio.timeout(10):
            while not (found := client.refusals()):  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.02)
        assert "max_seconds=0.3" in found[0]
        writer.transport.abort()


async def test_a_silent_guest_loses_its_connection(origin, monkeypatch):
    monkeypatch.setattr("atoll.egress.proxy.IDLE_SECONDS", 0.1)
    async with serving(policy_for(origin)) as client:
        assert await client.say(b"GET http://api.te") == b""


async def test_connections_beyond_max_connections_wait(origin):
    async with serving(policy_for(origin, max_connections=1)) as client:
        _, first = await asyncio.open_connection("127.0.0.1", client.port)
        await asyncio.sleep(0.05)
        second = asyncio.ensure_future(client.get(f"http://{NAME}:{origin.port}/"))
        done, _ = await asyncio.wait({second}, timeout=0.2)
        assert not done
        first.close()
        assert b"200 OK" in await second


async def test_a_flood_after_the_last_request_is_slowed(origin, monkeypatch):
    pauses, sleep = [], asyncio.sleep

    async def pause(seconds):
        if seconds == SPENT_PAUSE:
            pauses.append(seconds)
        else:  # whatever else waits in this process
            await sleep(seconds)

    async with serving(policy_for(origin, max_requests=2)) as client:
        monkeypatch.setattr("atoll.egress.proxy.asyncio.sleep", pause)
        await client.get("http://evil.test/")
        await client.say(b"", end=True)  # a connection without a request counts as one
        assert pauses == []
        for said in (b"", b"\x00garbage\r\n\r\n", b"GET http://evil.test/ HTTP/1.1\r\n\r\n"):
            before = len(pauses)
            await client.say(said, end=True)
            assert 0.05 in pauses[before:], said


async def test_a_restored_sandbox_goes_on_with_what_it_had_used(origin):
    policy = policy_for(origin, max_requests=3, max_bytes=100_000).counted()
    url = f"http://{NAME}:{origin.port}/"
    async with serving(policy) as client:
        for _ in range(2):
            assert (await client.get(url)).startswith(b"HTTP/1.1 200")
    used = policy.spent.bytes
    assert used > 0
    async with serving(policy) as client:  # the proxy of the sandbox that was restored
        assert (await client.get(url)).startswith(b"HTTP/1.1 200")
        assert b"has used its max_requests=3" in await client.get(url)
    assert policy.spent.bytes > used
    assert policy_for(origin).spent is None
