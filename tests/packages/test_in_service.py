"""Packages and hosts that clients of a service ask for: within what its operator allows."""

from __future__ import annotations

import dataclasses
import http.server
import threading

import httpx2
import pytest

import atoll
from atoll import ConfigError, NetworkPolicy
from atoll.errors import AtollError

SECRET = "sk-of-the-client-1234"


class Echo(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"you are {self.headers['Authorization']}".encode())

    def log_message(self, *_args):
        pass


@pytest.fixture
def place():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def operated(own_service, monkeypatch):
    """Have the service allow what a test says; return a function that POSTs to it."""
    url, key = own_service.start()
    monkeypatch.setenv("ATOLL_URL", url)
    monkeypatch.setenv("ATOLL_API_KEY", key)

    def allow(**settings):
        changed = dataclasses.replace(own_service.service.settings, **settings)
        monkeypatch.setattr(own_service.service, "settings", changed)

        def post(**body):
            return httpx2.post(
                f"{url}/api/v1/run",
                json={"code": "1", **body},
                headers={"Authorization": f"Bearer {key}"},
                timeout=60,
            )

        return post

    return allow


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (
            {"packages": ["tiny"]},
            "no packages (asked for tiny); its operator can allow it: atoll serve --session-package tiny",
        ),
        (
            {"network": ["api.test"]},
            "its operator can allow it: atoll serve --session-host api.test",
        ),
        ({"network": {"allow": ["127.0.0.1:80"]}}, "allows no hosts (asked for 127.0.0.1:80)"),
    ],
)
def test_a_service_allows_nothing_unless_its_operator_says_so(operated, asked, words):
    answer = operated()(**asked)
    assert (answer.status_code, answer.json()["code"]) == (403, "not_allowed")
    assert words in answer.json()["detail"]


def test_a_client_cannot_widen_what_the_operator_allows(operated):
    post = operated(session_hosts=("*", "*.a.test:8443"), session_packages=("other", "tiny==1.0"))
    for network in (["127.0.0.1"], ["localhost"], ["169.254.169.254"], ["b.test:8443"],
                    ["b.test", "10.0.0.1"]):  # fmt: skip
        assert post(network=network).json()["code"] == "not_allowed", network
    for field, value in (("max_bytes", None), ("max_requests", 10**6), ("max_seconds", 1e9),
                         ("max_connections", 1000)):  # fmt: skip
        answer = post(network={"allow": ["b.test"], field: value})
        assert (answer.status_code, field in answer.json()["detail"]) == (403, True)
    for more in ({"private": ["127.0.0.0/8"]}, {"on_request": "x"}, {"hedaers": {}}):
        assert post(network={"allow": ["b.test"], **more}).status_code == 400
    for package in ("tiny", "tiny==2.0", "tiny>=1", "@data", "third"):
        assert post(packages=[package]).json()["code"] == "not_allowed", package
    for package in ("-r /etc/passwd", "./evil.whl", "evil @ http://evil.test/x.whl"):
        assert post(packages=[package]).status_code == 400
    assert post(network=["b.test:443", "x.a.test:8443"]).status_code == 200


@pytest.mark.long
def test_a_star_allows_every_package_but_not_the_operators_environments(operated):
    post = operated(session_packages=("*",))
    assert post(packages=["@data"]).json()["code"] == "not_allowed"
    missing = post(packages=["no-such-package"])
    assert (missing.status_code, missing.json()["code"]) == (422, "packages")
    assert "the package 'no-such-package' cannot be installed" in missing.json()["detail"]


def test_a_remote_sandbox_has_packages_and_a_network_with_a_credential(
    operated, place, cache, index, without_pip
):
    index.wheel("tiny")
    operated(session_hosts=(place,), session_packages=("tiny",))
    policy = NetworkPolicy([place], headers={place: {"Authorization": f"Bearer {SECRET}"}})
    with atoll.create_sandbox(backend="remote", packages=["tiny"], network=policy) as box:
        result = box.execute(
            "import tiny, urllib.request\n"
            f"[tiny.version, urllib.request.urlopen('http://{place}/me?x=1').read().decode()]"
        )
        assert result.value == ["1.0", "you are " + "*" * len(f"Bearer {SECRET}")]
        (one,) = result.network.requests
        assert (one.place, one.path, one.status, one.redacted) == (place, "/me", 200, 1)
        refused = box.shell(
            "python3 -c \"import urllib.request as u; u.urlopen('http://evil.test')\""
        )
        assert f"NetworkNotAllowed: this sandbox may reach {place}" in refused.output
        assert [one.place for one in refused.network.refused] == ["evil.test:80"]
    with pytest.raises(
        AtollError, match=r"this service allows only the packages tiny \(asked for other\)"
    ):
        atoll.create_sandbox(backend="remote", packages=["other"])
    with pytest.raises(ConfigError, match="leave `private` and `on_request` out"):
        atoll.create_sandbox(
            backend="remote", network={"allow": [place], "private": ["10.0.0.0/8"]}
        )
