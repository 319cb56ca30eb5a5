"""What must not be asked is not asked: by name, by address, by redirect, by a name that moves."""

from __future__ import annotations

import sys

import pytest
from webkit import HOST, fetcher, pointing_to

import atoll
from atoll.agent.web import Fetcher, WebPolicy

pytestmark = pytest.mark.spec("R4.6")


async def refused(fetching: Fetcher, url: str) -> str:
    with pytest.raises(atoll.WebRefusedError) as caught:
        await fetching.fetch(url)
    fetching.close()
    return str(caught.value)


def no_lookup(*_: object) -> list:
    raise AssertionError("a name was looked up")


async def test_nothing_is_allowed_unless_hosts_are_named():
    said = await refused(Fetcher(resolver=no_lookup), "http://docs.python.org/")
    assert said == "web_fetch is off: give WebPolicy(allow=('docs.python.org', '*.example.org'))"


@pytest.mark.parametrize(
    "url",
    [
        "http://evil.org/",
        "http://evil-docs.example.org/",
        "http://docs.example.org.evil.org/",
        "http://example.net/",
        "http://evilexample.net/",
        "http://docs.example.org@evil.org/",
        "http://user:word@docs.example.org/",
        "http://docs.example.org\\@evil.org/",
        "http://evil.org\\@docs.example.org/",
        "http://docs.example.org\\.evil.org/",
        "http://docs.example.org%2f@evil.org/",
        "http://docs.example.org%00.evil.org/",
        "http://docs.example.org\t.evil.org/",
        "http://docs.example.org/\r\nHost: evil.org",
        "http://docs.example.org:22/",
        "http://docs.example.org:80:22/",
        "http://docs.example.org:99999/",
        "http://docs.example.org:٤٤٣/",
        "http://127.0.0.1/",
        "http://0177.0.0.1/",
        "http://0x7f.0.0.1/",
        "http://0x7f000001/",
        "http://2130706433/",
        "http://127.1/",
        "http://①②⑦.⓪.⓪.①/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://[2002:7f00:1::]/",
        "http://[fe80::1%25eth0]/",
        "http://localhost/",
        "http:///docs.example.org/",
        "http:docs.example.org/",
        "//docs.example.org/",
        "file:///etc/passwd",
        "ftp://docs.example.org/",
        "gopher://docs.example.org/",
        "data:text/plain,hello",
        "javascript:alert(1)",
        "",
        "http://" + "a" * 10_000,
    ],
)
async def test_a_url_that_is_a_trick_is_refused_before_any_lookup(url):
    policy = WebPolicy(allow=(HOST, "*.example.net"))
    assert "refused" in await refused(Fetcher(policy, resolver=no_lookup), url)


@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/", "http://[::ffff:127.0.0.1]/", "http://127.0.0.1/"]
)
async def test_a_private_address_is_refused_even_if_it_is_in_the_list(url):
    host = url[7:-1].strip("[]")
    policy = WebPolicy(allow=(host,))
    assert "refused" in await refused(Fetcher(policy, resolver=no_lookup), url)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.2", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
        "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1",
        "::ffff:10.0.0.1", "::ffff:127.0.0.1", "64:ff9b::a00:1", "2002:a00:1::",
    ],
)  # fmt: skip
async def test_a_name_that_leads_to_a_private_address_is_refused(address, server):
    said = await refused(fetcher(server, pointing_to(address)), server.url())
    assert "is refused" in said
    assert server.requests == []


async def test_a_name_of_which_one_address_is_private_is_refused(server):
    await refused(fetcher(server, pointing_to("127.0.0.1", "10.0.0.1")), server.url())
    assert server.requests == []


async def test_the_address_that_was_checked_is_the_one_that_is_connected_to(server):
    server.page("/", b"hello")
    asked: list[str] = []

    def moving(host: str, port: int, *_: int) -> list:
        asked.append(host)
        return pointing_to("127.0.0.1" if len(asked) == 1 else "10.0.0.1")(host, port)

    async with fetcher(server, moving) as fetching:
        assert (await fetching.fetch(server.url())).text == "hello"
    assert asked == [HOST]  # there was no second lookup for it to move in


@pytest.mark.parametrize(
    "location",
    [
        "http://evil.org/",
        "http://127.0.0.1/",
        "http://169.254.169.254/",
        "//evil.org/",
        "file:///etc/passwd",
        "http://docs.example.org:1/",
        "http://docs.example.org@evil.org/",
        "\\\\evil.org\\x",
        "http://[::ffff:7f00:1]/",
    ],
)
async def test_a_redirect_is_checked_as_the_first_url_was(location, server):
    url = server.redirect("/go", location)
    await refused(fetcher(server), url)
    assert len(server.requests) == 1


async def test_a_redirect_is_resolved_anew_and_its_address_checked(server):
    url = server.redirect("/go", server.url("/", "inner.example.net"))

    def resolve(host: str, port: int, *_: int) -> list:
        return pointing_to("127.0.0.1" if host == HOST else "10.0.0.1")(host, port)

    await refused(fetcher(server, resolve), url)
    assert len(server.requests) == 1


async def test_redirects_end_at_the_most_that_may_be(server):
    url = server.redirect("/again", "/again")
    said = await refused(fetcher(server, max_redirects=3), url)
    assert "more redirects than max_redirects=3" in said
    assert len(server.requests) == 4


async def test_hosts_are_matched_without_regard_to_case_dots_and_script(server):
    server.page("/", b"hello")
    async with fetcher(server, cache_seconds=0) as fetching:
        for host in (
            "DOCS.Example.ORG",
            "docs.example.org.",
            "docs。example。org",
            "a.b.example.net",
        ):
            assert (await fetching.fetch(server.url("/", host))).text == "hello"
    hosts = [request.split("Host: ")[1].split("\r\n")[0] for request in server.requests]
    assert hosts == [f"{HOST}:{server.port}"] * 3 + [f"a.b.example.net:{server.port}"]


@pytest.mark.parametrize("allow", [("*",), ("a.*.org",), ("",), "docs.python.org"])
def test_a_list_that_makes_no_sense_is_refused(allow):
    with pytest.raises(atoll.ConfigError, match="allow"):
        Fetcher(WebPolicy(allow=allow))


@pytest.mark.parametrize("field", ["max_bytes", "timeout_seconds"])
def test_a_limit_that_cannot_be_is_refused(field):
    with pytest.raises(atoll.ConfigError, match=field):
        WebPolicy(**{field: 0})


def test_a_library_that_is_missing_is_named_with_what_to_type(monkeypatch):
    monkeypatch.setitem(sys.modules, "ssrfguard", None)
    with pytest.raises(
        atoll.ConfigError, match=r"needs ssrfguard. Type: .*pip install .*'ssrfguard"
    ):
        Fetcher()
