"""Servers in a guest, reached from outside: listed, connected, and by a local listener."""

from __future__ import annotations

import asyncio
import socket
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from guest_servers import ECHO

import atoll
from atoll import Capability, ConfigError, PortError, SandboxClosedError, UnsupportedError
from atoll.backends import registry

PORTS = pytest.mark.needs(Capability.PORTS)
SERVER = """
import http.server, pathlib, threading
class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(({address!r}, {port}), Quiet)
threading.Thread(target=server.serve_forever, daemon=True).start()
pathlib.Path('page.txt').write_text({text!r})
"""


def serve(box, port=8000, address="127.0.0.1", text="from the guest"):
    result = box.execute(SERVER.format(port=port, address=address, text=text))
    assert result.error is None


def fetch(url):
    with urllib.request.urlopen(f"{url}/page.txt", timeout=20) as response:
        return response.read().decode()


def exchange(connection, data):
    with connection:
        connection.settimeout(30)
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


@PORTS
def test_a_server_in_the_guest_is_listed_and_read_through_a_local_listener(box):
    assert box.ports() == ()
    serve(box)
    serve(box, 8001, "0.0.0.0")
    assert [(port.number, port.address) for port in box.ports()] == [
        (8000, "127.0.0.1"),
        (8001, "0.0.0.0"),
    ]
    url = box.port(8000)
    assert url.startswith("http://127.0.0.1:")
    assert fetch(url) == fetch(box.port(8001)) == "from the guest"
    assert box.port(8000) == url


@PORTS
def test_a_server_is_reached_while_a_cell_runs(box):
    serve(box)
    url = box.port(8000)
    waiting = "import time\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)\n'gone'"
    with ThreadPoolExecutor(1) as thread:
        run = thread.submit(box.execute, waiting)
        assert fetch(url) == "from the guest"
        assert [port.number for port in box.ports()] == [8000]
        box.files.write("/app/go", "")
        assert run.result(30).value == "gone"


@PORTS
def test_a_connection_carries_any_bytes_and_the_end_of_each_way(box):
    assert box.execute(ECHO).error is None
    data = bytes(range(256)) * 20_000
    assert exchange(box.connect(7000), data) == data[::-1]
    address = ("127.0.0.1", int(box.port(7000).rpartition(":")[2]))
    assert exchange(socket.create_connection(address), data) == data[::-1]


@PORTS
def test_many_connections_at_once(box):
    assert box.execute(ECHO).error is None
    address = ("127.0.0.1", int(box.port(7000).rpartition(":")[2]))
    opened = [socket.create_connection(address, 30) for _ in range(50)]
    for number, connection in enumerate(opened):
        connection.sendall(b"%02d" % number)
    assert [exchange(connection, b"") for connection in opened] == [
        (b"%02d" % number)[::-1] for number in range(50)
    ]


@PORTS
def test_nothing_that_listens_is_said_with_the_port(box):
    with pytest.raises(PortError, match="port 8000 of the sandbox cannot be reached: nothing"):
        box.connect(8000)
    url = box.port(8000)  # a server may be started later
    with pytest.raises((OSError, urllib.error.URLError)):
        fetch(url)
    serve(box)
    assert fetch(url) == "from the guest"


@PORTS
@pytest.mark.parametrize("port", [0, -1, 65536, "8000", True, None, 80.0])
def test_a_port_must_be_a_number_of_a_port(box, port):
    for use in (box.port, box.connect):
        with pytest.raises(ConfigError, match="port must be a whole number from 1 to 65535"):
            use(port)


@PORTS
def test_the_listener_is_closed_with_the_sandbox(open_box):
    box = open_box()
    serve(box)
    url = box.port(8000)
    kept = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 30)
    box.destroy()
    with kept, pytest.raises(OSError, match="refused"):
        assert kept.recv(1) == b""
        fetch(url)
    with pytest.raises(SandboxClosedError):
        box.port(8000)


@PORTS
def test_one_guest_never_reaches_the_server_of_another(open_box):
    first, second = open_box(), open_box()
    serve(first, text="first")
    assert second.ports() == ()
    with pytest.raises(PortError):
        second.connect(8000)
    serve(second, text="second")
    assert (fetch(first.port(8000)), fetch(second.port(8000))) == ("first", "second")


@PORTS
@pytest.mark.needs(Capability.FORK)
def test_a_clone_reaches_the_servers_of_the_jail_that_it_shares(box):
    serve(box)
    twin = box.fork()
    try:
        assert [port.number for port in twin.ports()] == [8000]
        serve(twin, 8001, text="from the clone")
        assert fetch(twin.port(8001)) == "from the clone"
    finally:
        twin.destroy()
    assert fetch(box.port(8000)) == "from the guest"


@PORTS
@pytest.mark.needs(Capability.NETWORK)
def test_the_proxy_of_a_network_policy_is_not_a_port_of_the_guest(open_box):
    box = open_box(network=["127.0.0.1:9"])
    assert box.ports() == ()
    with pytest.raises(PortError, match="the proxy of the network policy listens there"):
        box.connect(3128)


@PORTS
async def test_ports_are_there_for_async_callers(backend):
    async with atoll.aio.create_sandbox(backend=backend) as box:
        await box.execute(ECHO)
        assert [port.number for port in await box.ports()] == [7000]
        connection = await box.connect(7000)
        assert await asyncio.to_thread(exchange, connection, b"abc") == b"cba"


def test_a_backend_without_ports_says_so(backend):
    if Capability.PORTS in registry.load(backend).capabilities:
        pytest.skip("it has them")
    with atoll.create_sandbox(backend=backend) as box:
        for use in (box.ports, lambda: box.port(8000), lambda: box.connect(8000)):
            with pytest.raises(UnsupportedError, match="cannot reach servers in the guest"):
                use()
