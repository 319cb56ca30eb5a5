"""Sandboxes beside each other: one proxy each, and what one is denied costs the other nothing."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading

from egresskit import NAME, answer, policy_for, serving

import atoll

FLOOD = 200
HELD = """
import os, socket
found = []
for name in os.listdir('/proc/self/fd'):
    try:
        one = socket.socket(fileno=os.dup(int(name)))
        found.append([str(one.family), one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)])
        one.close()
    except OSError:
        pass
found
"""
HOST = """
import sys
import atoll
place = sys.argv[1]
with atoll.create_sandbox(backend="native", network=[place]) as box:
    box.execute(f"import urllib.request; urllib.request.urlopen('http://{place}/slow')")
"""


async def test_a_flood_of_denied_calls_costs_the_neighbour_nothing(origin):
    """Its request in flight keeps its counts and limits, and a new one waits for no flood."""
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def held(_reader, writer):
        asked.set()
        await go_on.wait()
        writer.write(answer(b"held"))

    origin.answers["/held"] = held
    policy = policy_for(origin, max_requests=2, max_connections=2)
    async with serving(policy) as neighbour, serving(policy_for(origin)) as flooder:
        in_flight = asyncio.ensure_future(neighbour.get(f"http://{NAME}:{origin.port}/held"))
        await asked.wait()
        left = FLOOD

        async def flood():
            nonlocal left
            while left:
                left -= 1
                await flooder.get("http://evil.test/")
                await flooder.say(b"\x00garbage\r\n\r\n", end=True)

        floods = [asyncio.ensure_future(flood()) for _ in range(8)]
        while left > FLOOD - 16:  # noqa: ASYNC110 - each turn is an event of the flood
            await asyncio.sleep(0)
        assert b"200 OK" in await neighbour.get(f"http://{NAME}:{origin.port}/new")
        assert left > 0, "the flood is not over when the new request is"
        await asyncio.gather(*floods)
        go_on.set()
        assert (await in_flight).endswith(b"held")
        used = neighbour.use()
        assert [(one.path, one.refused) for one in used.requests] == [
            ("/new", None),
            ("/held", None),
        ]
        assert len(flooder.use().refused) == 2 * FLOOD


async def test_a_caller_who_decides_slowly_holds_up_its_own_sandbox_alone(origin):
    decides, go_on = threading.Semaphore(0), threading.Event()

    def slow(_asked):
        decides.release()
        go_on.wait(20)

    async with (
        serving(policy_for(origin, on_request=slow)) as busy,
        serving(policy_for(origin, on_request=lambda _asked: None)) as neighbour,
    ):
        waiting = [
            asyncio.ensure_future(busy.get(f"http://{NAME}:{origin.port}/")) for _ in range(30)
        ]
        await asyncio.to_thread(decides.acquire)
        try:
            assert b"200 OK" in await neighbour.get(f"http://{NAME}:{origin.port}/")
            assert not any(one.done() for one in waiting)
        finally:
            go_on.set()
        for reply in await asyncio.gather(*waiting):
            assert b"200 OK" in reply


def test_no_guest_holds_a_descriptor_of_a_proxy_or_reaches_anothers():
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"127.0.0.1:{server.getsockname()[1]}"
        names = {"first": place, "second": "127.0.0.1:1"}
        boxes = {
            name: atoll.create_sandbox(backend="native", network=[one])
            for name, one in names.items()
        }
        try:
            for box in boxes.values():
                held = box.execute(HELD).value
                assert not any(listening for _, listening in held)
                assert not any("INET" in family for family, _ in held)
            ask = f"import urllib.request; urllib.request.urlopen('http://{place}/')"
            refused = boxes["second"].execute(ask)
            assert f"may reach 127.0.0.1:1; asked for {place}" in refused.error
            assert [one.place for one in refused.network.requests] == [place]
            assert boxes["first"].execute("1").network.requests == ()
            taken = boxes["second"].execute(
                "import socket\nwith socket.socket() as one:\n"
                "    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)\n"
                "    one.bind(('127.0.0.1', 3128))"
            )
            assert taken.error_type == "OSError", "the proxy's place in the guest is taken"
        finally:
            for box in boxes.values():
                box.destroy()


def test_a_host_that_is_killed_in_mid_request_leaves_no_connection():
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"127.0.0.1:{server.getsockname()[1]}"
        host = subprocess.Popen([sys.executable, "-c", HOST, place])
        try:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(20)
                assert connection.recv(4096).startswith(b"GET /slow ")
                host.kill()
                assert connection.recv(4096) == b""
            assert host.wait(20) == -signal.SIGKILL
        finally:
            host.kill()
            host.wait()
