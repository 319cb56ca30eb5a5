"""A guest with a network policy: ordinary clients reach what is named, and nothing else."""

from __future__ import annotations

import contextlib
import http.server
import threading

import pytest

import atoll
from atoll import Capability, ConfigError, ExecutionPolicy, NetworkPolicy
from atoll.agent.rlm.models.scripted import ScriptedModel
from atoll.agent.trajectory import CodeRan
from atoll.agent.trajectory.reader import read
from atoll.egress.authority import Authority

NETWORK = pytest.mark.needs(Capability.NETWORK)
SECRET = "sk-contract-" + "9f8e7d6c5b4a"
CLIENTS = """
import subprocess, urllib.request, requests, httpx
url = '{scheme}://{place}/v1/who?q=1'
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
        given = self.headers.get("Authorization")
        self.server.seen.append((self.path, given))
        body = f"authorised as {given}".encode()
        self.send_response(401, f"no right as {given}") if self.path == "/fail" else (
            self.send_response(200)
        )
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args):
        pass


@contextlib.contextmanager
def serving(tls=None):
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.seen = []
    if tls is not None:
        made.socket = tls.wrap_socket(made.socket, server_side=True)
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


@pytest.fixture(scope="module")
def server():
    with serving() as made:
        yield made


@pytest.fixture
def tls_server(request, tmp_path, monkeypatch):
    """A server whose certificate the host trusts, as its system store says."""
    issuer = Authority()
    (tmp_path / "ca.pem").write_text(issuer.pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with serving(issuer.context(request.getfixturevalue("host"))) as made:
        yield made


def policy_of(server, host="127.0.0.1", **fields):
    place = f"{host}:{server.server_port}"
    return NetworkPolicy([place], headers={place: {"Authorization": f"Bearer {SECRET}"}}, **fields)


@NETWORK
@pytest.mark.skipif("not __import__('shutil').which('curl')")
def test_clients_reach_the_server_with_a_credential_that_is_nowhere_in_the_guest(open_box, server):
    box = open_box(network=policy_of(server), policy=ExecutionPolicy(memory_bytes=None))
    check_clients(box, server, "http", f"127.0.0.1:{server.server_port}")


@pytest.mark.skipif("not __import__('shutil').which('curl')")
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])  # with a TLS server name, and without
def test_clients_trust_the_sandboxs_authority_and_the_credential_is_nowhere(tls_server, host):
    place = f"{host}:{tls_server.server_port}"
    policy = policy_of(tls_server, host, inspect_tls=True)
    memory = ExecutionPolicy(memory_bytes=None)
    with atoll.create_sandbox(backend="native", network=policy, policy=memory) as box:
        check_clients(box, tls_server, "https", place)
        failed = box.execute(f"urllib.request.urlopen('https://{place}/fail')")
        assert "HTTP Error 401: no right as ***" in failed.error
        assert box.execute("sorted(os.listdir('/home/guest'))").value == [".atoll-network-ca.pem"]
        assert "PRIVATE" not in box.execute("open(os.environ['SSL_CERT_FILE']).read()").value


def check_clients(box, server, scheme, place):
    result = box.execute(CLIENTS.format(scheme=scheme, place=place))
    masked = "authorised as " + "*" * len(f"Bearer {SECRET}")
    assert result.stdout.split("\n")[:4] == [masked] * 4, result
    assert server.seen[-4:] == [("/v1/who?q=1", f"Bearer {SECRET}")] * 4
    used = result.network.requests
    assert [(one.method, one.path, one.status, one.redacted) for one in used] == [
        ("GET", "/v1/who", 200, 1)
    ] * 4
    half, rest = SECRET[:14], list(SECRET[14:].encode())
    search = SEARCH.format(half=half, rest=rest)
    assert box.execute(search).value == [[], True]
    found, _ = box.execute(f"planted = half + rest\n{search}").value
    assert found, "the search finds what is there"


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


CURLS = """
import subprocess
for options in ('-sS', '-v'):
    print(subprocess.run(['curl', options, 'https://evil.test/'], capture_output=True, text=True).stderr)
"""


@NETWORK
@pytest.mark.skipif("not __import__('shutil').which('curl')")
def test_a_refused_curl_is_told_in_words(open_box, server):
    place = f"127.0.0.1:{server.server_port}"
    box = open_box(network=[place])
    words = f"NetworkNotAllowed: this sandbox may reach {place}; asked for evil.test:443"
    assert f"< HTTP/1.1 403 {words}" in box.execute(CURLS).stdout
    response = box.shell("curl -sS https://evil.test/")
    assert response.output.endswith(f"response 403\n{words}\n")
    assert box.shell("curl -sS https://evil.test/ || true").output.count(words) == 0
    assert box.execute("!curl -sS https://evil.test/").stderr == f"{words}\n"
    said = box.execute("import urllib.request; urllib.request.urlopen('https://evil.test/')").stderr
    assert said.count("NetworkNotAllowed") == said.count("Error:") == 2, said  # its traceback alone


@NETWORK
def test_every_public_host_is_not_the_hosts_loopback(open_box, server):
    box = open_box(network=["*"])
    for host in ("127.0.0.1", "localhost"):
        url = f"http://{host}:{server.server_port}/"
        failed = box.execute(f"import urllib.request; urllib.request.urlopen({url!r})")
        assert f"nothing listens on 127.0.0.1:{server.server_port} here" in failed.error, failed
        assert "NetworkNotAllowed: this sandbox may reach *, by HTTP through" in failed.error
        assert "the host's loopback only if it is named" in failed.error


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


def test_the_trajectory_of_a_run_has_each_request_without_its_query(server, tmp_path):
    place = f"127.0.0.1:{server.server_port}"
    ask = f"import urllib.request as u; u.urlopen('http://{place}/t?key=hidden').read()"
    cells = [
        f"```python\n{ask}\nu.urlopen('http://evil.test/')\n```",
        "```python\nFINAL('done')\n```",
    ]
    trace = tmp_path / "run.jsonl"
    with atoll.RLM(
        ScriptedModel(cells), backend="native", network=policy_of(server), trajectory=trace
    ) as rlm:
        rlm.completion("What is there?", "nothing of note\n" * 5_000)
    ran = [one for one in read(trace) if isinstance(one, CodeRan)]
    seen = [(one["place"], one["path"], one["status"], one["redacted"]) for one in ran[0].network]
    assert seen == [(place, "/t", 200, 1), ("evil.test:80", "/", None, 0)]
    assert "asked for evil.test:80" in ran[0].network[1]["refused"]
    text = trace.read_text()
    assert SECRET not in text
    assert '"path": "/t?key' not in text


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
