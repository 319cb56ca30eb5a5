"""A guest with a network policy: ordinary clients reach what is named, and nothing else."""

from __future__ import annotations

import http.server
import threading

import pytest

import atoll
from atoll import Capability, ConfigError, ExecutionPolicy, NetworkPolicy

NETWORK = pytest.mark.needs(Capability.NETWORK)
SECRET = "sk-contract-" + "9f8e7d6c5b4a"
CLIENTS = """
import subprocess, urllib.request, requests, httpx
url = 'http://127.0.0.1:{port}/v1/who?q=1'
print(urllib.request.urlopen(url).read().decode())
print(requests.get(url).text)
print(httpx.get(url).text)
print(subprocess.run(['curl', '-sS', url], capture_output=True, text=True).stdout)
"""
SEARCH = """
import os
half, rest = {half!r}.encode(), bytes({rest!r})  # never joined: the search would find itself
def count(data):
    at, found = data.find(half), 0
    while at >= 0:
        found += data[at + len(half):at + len(half) + len(rest)] == rest
        at = data.find(half, at + 1)
    return found
found, searched = [], 0
with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb', 0) as memory:
    for line in maps:
        span, mode, *_ = line.split(None, 2)
        first, last = (int(part, 16) for part in span.split('-'))
        try:
            memory.seek(first)
            data = memory.read(last - first)
        except (OSError, ValueError, OverflowError):
            continue
        searched += len(data)
        found += [line] * count(data)
        del data
for folder in ('/app', '/tmp', '/home/guest', '/dev/shm'):
    for root, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(root, name), 'rb') as file:
                found += [name] * count(file.read())
found += [name for name, value in os.environ.items() if count(value.encode())]
[found, searched > 10_000_000]
"""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.seen.append((self.path, self.headers.get("Authorization")))
        body = f"authorised as {self.headers.get('Authorization')}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args):
        pass


@pytest.fixture(scope="module")
def server():
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.seen = []
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def policy_of(server, **fields):
    place = f"127.0.0.1:{server.server_port}"
    return NetworkPolicy([place], headers={place: {"Authorization": f"Bearer {SECRET}"}}, **fields)


@NETWORK
@pytest.mark.skipif("not __import__('shutil').which('curl')")
def test_clients_reach_the_server_with_a_credential_that_is_nowhere_in_the_guest(open_box, server):
    box = open_box(network=policy_of(server), policy=ExecutionPolicy(memory_bytes=None))
    result = box.execute(CLIENTS.format(port=server.server_port))
    masked = "authorised as " + "*" * len(f"Bearer {SECRET}")
    assert result.stdout.split("\n")[:4] == [masked] * 4, result.stderr
    assert server.seen[-4:] == [("/v1/who?q=1", f"Bearer {SECRET}")] * 4
    used = result.network.requests
    assert [(one.method, one.path, one.status, one.redacted) for one in used] == [
        ("GET", "/v1/who", 200, 1)
    ] * 4
    half, rest = SECRET[:14], list(SECRET[14:].encode())
    assert box.execute(SEARCH.format(half=half, rest=rest)).value == [[], True]


@NETWORK
def test_another_host_is_refused_in_words(open_box, server):
    box = open_box(network=[f"127.0.0.1:{server.server_port}"])
    words = f"NetworkNotAllowed: this sandbox may reach 127.0.0.1:{server.server_port}"
    for code in (
        "import urllib.request; urllib.request.urlopen('http://evil.test/')",
        "import urllib.request; urllib.request.urlopen('https://evil.test/')",
        "import socket; socket.create_connection(('evil.test', 80))",
    ):
        assert words in box.execute(code).error
    result = box.execute("import urllib.request; urllib.request.urlopen('https://evil.test/')")
    assert [(one.place, one.refused is None) for one in result.network.requests] == [
        ("evil.test:443", False)
    ]


@NETWORK
def test_the_jail_has_no_other_way_out(open_box, server):
    box = open_box(network=[f"127.0.0.1:{server.server_port}"])
    code = f"""
import socket
def fails(*where, kind=socket.SOCK_STREAM, family=socket.AF_INET):
    try:
        with socket.socket(family, kind) as one:
            one.settimeout(1)
            one.connect(where)
        return False
    except OSError:
        return True
[fails('127.0.0.1', {server.server_port}), fails('93.184.216.34', 80),
 fails('93.184.216.34', 53, kind=socket.SOCK_DGRAM), fails('169.254.169.254', 80),
 fails('127.0.0.1', 80, kind=socket.SOCK_RAW), fails('x', family=socket.AF_NETLINK)]
"""
    assert box.execute(code).value == [True] * 6


@NETWORK
def test_the_caller_decides_and_a_shell_command_is_listed(open_box, server):
    asked = []

    def decide(request):
        asked.append(request.path)
        return "not this one" if request.path == "/no" else None

    box = open_box(network=policy_of(server, on_request=decide))
    base = f"http://127.0.0.1:{server.server_port}"
    response = box.shell(
        f"python3 -c \"import urllib.request as u; u.urlopen('{base}/yes').read(); u.urlopen('{base}/no')\""
    )
    assert "NetworkNotAllowed" in response.output
    assert "not this one" in response.output
    assert asked == ["/yes", "/no"]
    assert [one.path for one in response.network.requests] == ["/yes", "/no"]


@pytest.mark.needs(Capability.FETCH)
def test_fetch_returns_status_headers_and_body(open_box, server):
    box = open_box(network=policy_of(server))
    url = f"http://127.0.0.1:{server.server_port}/f"
    assert box.execute(f"r = fetch({url!r}); [r['status'], r['body'][:13].decode()]").value == [
        200,
        "authorised as"[:13],
    ]
    refused = box.execute("fetch('http://evil.test/')")
    assert "NetworkNotAllowed: this sandbox may reach" in refused.error
    assert [one.place for one in refused.network.refused] == ["evil.test:80"]
    nowhere = box.execute("import socket; socket.create_connection(('evil.test', 80))")
    assert "NetworkNotAllowed: this sandbox may reach" in nowhere.error


@NETWORK
def test_without_a_policy_there_is_no_proxy(open_box):
    box = open_box()
    result = box.execute("import os, socket; print(os.environ.get('HTTP_PROXY'))\n"
                         "socket.create_connection(('127.0.0.1', 3128))")  # fmt: skip
    assert result.stdout == "None\n"
    assert "ConnectionRefusedError" in result.error
    assert result.network is None


def test_the_events_of_the_logger_name_each_request(server):
    events = []
    logger = atoll.SandboxLogger(events.append)
    with atoll.create_sandbox(backend="native", network=policy_of(server), logger=logger) as box:
        box.execute(
            "import urllib.request as u\n"
            f"u.urlopen('http://127.0.0.1:{server.server_port}/a?secret=1')\n"
            "try: u.urlopen('http://evil.test')\nexcept OSError: pass"
        )
    seen = [(one.name, one.fields) for one in events if "network" in str((one.name, one.fields))]
    assert [name for name, _ in seen] == ["network_request", "network_request", "security"]
    assert seen[0][1]["path"] == "/a"
    assert seen[2][1]["type"] == "network_refused"
    assert SECRET not in repr(events)


def test_a_backend_that_cannot_hold_a_policy_refuses():
    with pytest.raises(ConfigError, match="backend 'restricted' cannot hold a network policy"):
        atoll.create_sandbox(backend="restricted", min_isolation="none", network=["api.test"])


@pytest.mark.needs(Capability.FORK)
def test_a_clone_shares_the_network_of_its_origin(open_box, server):
    box = open_box(network=policy_of(server, max_requests=2))
    ask = f"import urllib.request as u; u.urlopen('http://127.0.0.1:{server.server_port}/c').status"
    assert box.execute(ask).value == 200
    with box.fork() as clone:
        box.destroy()
        result = clone.execute(ask)
        assert (result.value, len(result.network.requests)) == (200, 1)
        assert "max_requests=2" in clone.execute(ask).error


@pytest.mark.needs(Capability.SAVE, Capability.NETWORK)
def test_a_saved_state_holds_neither_policy_nor_secret(open_box, server):
    box = open_box(network=policy_of(server))
    ask = f"import urllib.request as u; u.urlopen('http://127.0.0.1:{server.server_port}/s').status"
    box.execute(f"x = 41\n{ask}")
    state = box.save()
    assert SECRET.encode() not in state
    without = open_box(state=state)
    assert without.execute("x + 1").value == 42
    assert "no network" in without.execute("import socket; socket.gethostbyname('a.test')").error
    assert open_box(state=state, network=policy_of(server)).execute(ask).value == 200
