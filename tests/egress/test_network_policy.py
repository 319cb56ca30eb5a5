"""What a NetworkPolicy takes, and which requests it covers."""

from __future__ import annotations

import sys

import pytest

from atoll import ConfigError
from atoll.egress.gateway import Gateway
from atoll.egress.rules import RefusedError, Rules
from atoll.network import HostRule, NetworkPolicy, NetworkRequest


def asked(host="api.test", port=443, method="CONNECT", **fields):
    return NetworkRequest(host=host, port=port, method=method, **fields)


def allowed(policy: NetworkPolicy, request: NetworkRequest) -> bool:
    try:
        Rules(policy).check(request)
    except RefusedError:
        return False
    return True


@pytest.mark.parametrize(
    ("rule", "host", "port", "covered"),
    [
        ("api.test", "api.test", 443, True),
        ("api.test", "api.test", 80, True),
        ("api.test", "api.test", 22, False),
        ("API.Test.:443", "api.test", 443, True),
        ("api.test:8080", "api.test", 443, False),
        ("*.test", "a.b.test", 443, True),
        ("*.test", "test", 443, False),
        ("*.test", "eviltest", 443, False),
        ("*.0.0.1", "127.0.0.1", 443, False),
        ("*", "anything.test", 443, True),
        ("127.0.0.1:80", "127.0.0.1", 80, True),
        ("[::1]:80", "::1", 80, True),
        ("[0:0:0:0:0:0:0:1]:80", "::1", 80, True),
    ],
)
def test_host_rule_covers_what_it_names(rule, host, port, covered):
    assert HostRule.parse(rule).covers(host, port) is covered


@pytest.mark.parametrize(
    ("allowed", "asked", "contained"),
    [
        ("api.test", "api.test", True), ("api.test", "api.test:443", True),
        ("api.test:443", "api.test", False), ("api.test", "api.test:22", False),
        ("api.test:22", "api.test:22", True), ("*.test", "a.test", True),
        ("*.test", "*.a.test", True), ("*.a.test", "*.test", False), ("*.test", "test", False),
        ("*.test", "*", False), ("*", "*", True), ("*", "*.test:443", True), ("*", "a.test:22", False),
        ("*:22", "a.test:22", True), ("*", "127.0.0.1", False), ("*", "localhost", False),
        ("*", "169.254.169.254", False), ("*.0.0.1", "127.0.0.1", False), ("*", "[::1]:80", False),
        ("10.0.0.5:80", "10.0.0.5:80", True), ("localhost:80", "localhost:80", True),
        ("*.localhost", "localhost", False),
    ],
)  # fmt: skip
def test_a_rule_contains_what_allows_no_more(allowed, asked, contained):
    assert HostRule.parse(allowed).contains(HostRule.parse(asked)) is contained


@pytest.mark.parametrize(
    "bad",
    ["", "https://api.test", "api.test/path", "api.test:0", "api.test:99999", "a b", "::1",
     "api.*.test", "user@api.test", "api.test:80:80", "-a.test", 5, None],
)  # fmt: skip
def test_a_host_that_is_none_is_refused(bad):
    with pytest.raises(ConfigError):
        NetworkPolicy([bad])


def test_a_list_of_hosts_stands_for_a_policy():
    assert NetworkPolicy.of(["a.test", "b.test:1"]) == NetworkPolicy(("a.test", "b.test:1"))
    assert NetworkPolicy.of({"allow": ["a.test"], "max_requests": 3}).max_requests == 3
    assert NetworkPolicy.of("a.test").allow == ("a.test",)
    assert NetworkPolicy.of(None) is NetworkPolicy.of([]) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"methods": "GET"}, {"methods": ["GE T"]}, {"paths": ["v1"]}, {"max_bytes": 0},
        {"max_connections": -1}, {"private": ["10.0.0.1/8"]}, {"deny": "x"}, {"max_bytes": "1"},
        {"headers": {"a.test": "Bearer x"}}, {"headers": {"other.test:80": {"A": "b"}}},
        {"headers": {"*.test:80": {"A": "b"}}}, {"headers": {"a.test:80": {"Host": "b"}}},
        {"headers": {"a.test:80": {"A b": "c"}}},
    ],
)  # fmt: skip
def test_a_bad_field_is_refused(fields):
    with pytest.raises(ConfigError):
        NetworkPolicy(["a.test"], **fields)


def test_an_unknown_field_names_the_closest():
    with pytest.raises(ConfigError, match="did you mean 'headers'"):
        NetworkPolicy.of({"allow": ["a.test"], "header": {}})


@pytest.mark.parametrize("value", ["secret\r\nX-Evil: 1", "secret\n", " secret", "sécret-value"])
def test_a_header_value_that_could_inject_is_refused_without_showing_it(value):
    with pytest.raises(ConfigError) as failed:
        NetworkPolicy(["a.test"], inspect_tls=True, headers={"a.test": {"Authorization": value}})
    assert "cret" not in str(failed.value)


def test_headers_for_https_need_inspection():
    with pytest.raises(ConfigError, match="inspect_tls=True"):
        NetworkPolicy(["a.test"], headers={"a.test": {"Authorization": "Bearer 123456"}})


def test_a_policy_does_not_show_its_secrets():
    policy = NetworkPolicy(["a.test:81"], headers={"a.test:81": {"X-Key": "sk-123456"}})
    assert "sk-123456" not in repr(policy)
    with pytest.raises(TypeError):
        policy.headers["a.test:81"]["X-Key"] = "other"


def test_deny_wins_over_allow_and_covers_every_port():
    policy = NetworkPolicy(["*.test", "*.test:8080"], deny=["evil.test", "*.bad.test"])
    assert allowed(policy, asked("good.test"))
    assert not allowed(policy, asked("evil.test", 8080))
    assert not allowed(policy, asked("a.bad.test"))


def test_the_refusal_names_what_is_allowed_and_what_was_asked_for():
    with pytest.raises(RefusedError) as refused:
        Rules(NetworkPolicy(["api.example.com:443"])).check(asked("evil.test"))
    assert str(refused.value) == (
        "NetworkNotAllowed: this sandbox may reach api.example.com:443; asked for evil.test:443"
    )


def test_methods_and_paths():
    policy = NetworkPolicy(["api.test"], methods=["get"], paths=["/v1/*", "/health"])

    def may(path, method="GET"):
        return allowed(policy, asked(port=80, method=method, scheme="http", path=path))

    assert may("/v1/things")
    assert may("/health")
    assert not may("/v1/things", "POST")
    assert not may("/v2/things")
    assert not may("/health/more")


@pytest.mark.parametrize(
    "path",
    ["/v1/../admin", "/v1/%2e%2e/admin", "/v1/..%2fadmin", "/v1//admin", "/v1/\\..\\admin",
     "/v1/%252e%252e/admin", "/v1/..;/admin", "/v1/%5c../admin", "/v1/./../admin"],
)  # fmt: skip
def test_a_path_that_servers_read_in_two_ways_is_refused(path):
    policy = NetworkPolicy(["api.test"], paths=["/v1/*"])
    assert not allowed(policy, asked(port=80, method="GET", scheme="http", path=path))


def test_https_that_is_not_read_is_refused_where_the_policy_must_read_it():
    for fields in ({"methods": ["GET"]}, {"paths": ["/v1/*"]}):
        with pytest.raises(RefusedError, match="inspect_tls=True"):
            Rules(NetworkPolicy(["api.test"], **fields)).check(asked())
    policy = NetworkPolicy(["api.test:8443"], headers={"api.test:8443": {"X-Key": "sk-123456"}})
    with pytest.raises(RefusedError, match="inspect_tls=True"):
        Rules(policy).check(asked(port=8443))


def test_trace_is_refused_as_it_echoes_credentials():
    assert not allowed(NetworkPolicy(["*"]), asked(port=80, method="TRACE", scheme="http"))


def test_headers_are_for_their_host_over_https_unless_the_port_is_named():
    rules = Rules(
        NetworkPolicy(
            ["a.test", "b.test:8080", "c.test"],
            inspect_tls=True,
            headers={"a.test": {"X-A": "aaaaaa"}, "b.test:8080": {"X-B": "bbbbbb"}},
        )
    )
    assert rules.added_headers(asked("a.test", method="GET")) == {"X-A": "aaaaaa"}
    assert rules.added_headers(asked("a.test", 80, "GET", scheme="http")) == {}
    assert rules.added_headers(asked("b.test", 8080, "GET", scheme="http")) == {"X-B": "bbbbbb"}
    assert rules.added_headers(asked("c.test", method="GET")) == {}


def test_without_its_extra_the_network_says_what_to_type(monkeypatch):
    monkeypatch.setitem(sys.modules, "ssrfguard", None)
    with pytest.raises(ConfigError, match=r"needs the extra `network`\. Type: .*pip install"):
        Gateway(NetworkPolicy(["api.test"]))


def test_counters_are_not_a_client_s_to_give():
    with pytest.raises(ConfigError, match="spent"):
        NetworkPolicy.of({"allow": ["a.test"], "spent": None})
    assert "spent" not in NetworkPolicy(("a.test",)).counted().plain()
