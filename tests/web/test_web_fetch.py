"""What a server sends: read as text, held to size and time, never with anything of ours in it."""

from __future__ import annotations

import codecs
import gzip
import os
import threading
import zlib

import pytest
from archivekit import make_pdf
from resiliparse.parse.encoding import detect_encoding
from webkit import HOST, fetcher

import atoll
from atoll.agent.archive.inflate import Zlib
from atoll.agent.archive.process import Process
from atoll.agent.web import html
from atoll.agent.web.fetcher import MAX_PAGES, Body, Cache
from atoll.egress.url_guard import Page

pytestmark = pytest.mark.spec("R4.6")
LABELS = """
    utf-8 ibm866 iso-8859-1 iso-8859-2 iso-8859-3 iso-8859-4 iso-8859-5 iso-8859-6 iso-8859-7
    iso-8859-8 iso-8859-8-i iso-8859-9 iso-8859-10 iso-8859-13 iso-8859-14 iso-8859-15 iso-8859-16
    koi8-r koi8-u macintosh windows-874 windows-1250 windows-1251 windows-1252 windows-1253
    windows-1254 windows-1255 windows-1256 windows-1257 windows-1258 x-mac-cyrillic gbk gb18030 big5
    euc-jp iso-2022-jp shift_jis euc-kr replacement utf-16be utf-16le x-user-defined utf-7 punycode
""".split()
HTML = """<html><head><title> The
 title</title><script>steal()</script><style>p {}</style></head>
<body><h1>Head</h1><p>A caf\u00e9 and a <a href="/more">link</a>.</p></body></html>"""


async def test_a_page_of_html_is_its_readable_text(server):
    url = server.page("/", HTML.encode(), "text/html; charset=utf-8")
    async with fetcher(server) as fetching:
        page = await fetching.fetch(url + "#part")
    assert (page.url, page.final_url, page.status) == (url + "#part", url, 200)
    assert page.title == "The title"
    assert "A caf\u00e9 and a link (/more)." in page.text
    assert "steal" not in page.text
    assert (page.truncated, page.from_cache) == (False, False)


async def test_html_says_its_charset_in_its_head(server):
    data = HTML.replace("<head>", '<head><meta charset="iso-8859-1">').encode("latin-1")
    async with fetcher(server) as fetching:
        assert "caf\u00e9" in (await fetching.fetch(server.page("/", data, "text/html"))).text


def test_html_is_read_behind_walls_in_whatever_charset_it_says():
    data = '<meta charset="gb18030"><p>\u4e2d\u6587'.encode("gb18030")
    process, fd = (
        Process("atoll.agent.web.html", memory=1 << 30, seconds=20, most=1000),
        os.memfd_create("x"),
    )
    try:
        os.write(fd, data)
        process.start((fd,), charset="")
        assert process.confined
        assert process.ask("text", fd=fd, charset="", most=1000)[1].decode() == "\u4e2d\u6587"
    finally:
        process.close()
        os.close(fd)


@pytest.mark.parametrize("label", LABELS)
def test_every_charset_that_a_page_can_say_is_loaded_before_the_walls(label):
    found = detect_encoding(f'<meta charset="{label}"><p>x'.encode(), from_html_meta=True)
    assert codecs.lookup(found).name in {codecs.lookup(one).name for one in html._DETECTED}


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        ("text/plain", b"plain", "plain"),
        ("text/plain; charset=shift_jis", "\u65e5\u672c".encode("shift_jis"), "\u65e5\u672c"),
        ("text/plain; charset=punycode", "caf\u00e9".encode(), "caf\u00e9"),
        ("text/plain; charset=zlib_codec", b"plain", "plain"),
        ("text/csv", "caf\u00e9".encode("latin-1"), "caf\u00e9"),
        ("application/json", b'{"a": 1}', '{"a": 1}'),
        ("application/ld+json", b"{}", "{}"),
        ("application/atom+xml", b"<feed/>", "<feed/>"),
    ],
)
async def test_text_comes_as_it_is(kind, body, text, server):
    async with fetcher(server) as fetching:
        assert (await fetching.fetch(server.page("/", body, kind))).text == text


async def test_a_pdf_is_the_text_of_its_pages(server):
    url = server.page("/x", make_pdf(b"Page the first", b"Page the second"), "application/pdf")
    async with fetcher(server) as fetching:
        assert (await fetching.fetch(url)).text == "Page the first\n\nPage the second"


async def test_a_pdf_that_is_none_is_an_error(server):
    async with fetcher(server) as fetching:
        with pytest.raises(atoll.WebError, match="the PDF cannot be read"):
            await fetching.fetch(server.page("/x", b"%PDF-1.4 no", "application/pdf"))


@pytest.mark.parametrize("kind", ["image/png", "application/octet-stream", "application/zip", ""])
async def test_what_is_no_text_is_refused_by_its_name(kind, server):
    async with fetcher(server) as fetching:
        with pytest.raises(
            atoll.WebError, match=f"the page is {kind or 'of no declared type'}: only HTML"
        ):
            await fetching.fetch(server.page("/", b"\x89PNG", kind))


async def test_a_status_is_told_with_what_the_server_said(server):
    async with fetcher(server) as fetching:
        page = await fetching.fetch(server.url("/none"))
        assert (page.status, page.text) == (404, "none")
        assert not (await fetching.fetch(server.url("/none"))).from_cache


async def test_a_redirect_within_the_list_is_followed(server):
    server.page("/end", b"here")
    async with fetcher(server) as fetching:
        page = await fetching.fetch(server.redirect("/go", "/end#x"))
    assert (page.text, page.final_url) == ("here", server.url("/end"))


async def test_a_body_is_cut_at_the_limit_while_it_comes(server):
    def endless(line):
        line.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        while not server.stopping.is_set():
            line.sendall(b"x" * 10_000)

    server.answers["/"] = endless
    async with fetcher(server, max_bytes=50_000) as fetching:
        page = await fetching.fetch(server.url())
    assert (len(page.text), page.truncated) == (50_000, True)


@pytest.mark.parametrize(("name", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_a_packed_body_is_cut_at_the_limit_as_it_is_unpacked(name, pack, server):
    bomb = pack(b"x" * 20_000_000)
    assert len(bomb) < 50_000
    async with fetcher(server, max_bytes=50_000) as fetching:
        page = await fetching.fetch(server.page("/", bomb, Content_Encoding=name))
        assert (len(page.text), page.truncated) == (50_000, True)
        page = await fetching.fetch(server.page("/b", pack(b"small"), Content_Encoding=name))
        assert (page.text, page.truncated) == ("small", False)
        page = await fetching.fetch(
            server.page("/c", pack(b"cut off" * 50)[:-9], Content_Encoding=name)
        )
        assert page.truncated


def test_no_more_is_unpacked_than_there_is_room_for(monkeypatch):
    sizes: list[int] = []
    unpack = Zlib.decompress

    def counted(self, data, max_length):
        sizes.append(len(unpack(self, data, max_length)))
        return bytes(sizes[-1])

    monkeypatch.setattr(Zlib, "decompress", counted)
    body = Body("gzip", 1000)
    body.add(gzip.compress(b"x" * 5_000_000))
    assert (sizes, body.truncated) == ([1001], True)


async def test_a_packing_that_was_not_asked_for_is_refused(server):
    async with fetcher(server) as fetching:
        with pytest.raises(atoll.WebError, match="encoding 'br', which was not asked for"):
            await fetching.fetch(server.page("/", b"x", Content_Encoding="br"))
        with pytest.raises(atoll.WebError, match="compressed data is damaged"):
            await fetching.fetch(server.page("/", b"no gzip", Content_Encoding="gzip"))


async def test_a_pdf_over_the_limit_is_refused_by_name(server):
    async with fetcher(server, max_bytes=100) as fetching:
        with pytest.raises(atoll.WebError, match="cut off after 100 bytes, as max_bytes says"):
            await fetching.fetch(server.page("/", make_pdf(b"x"), "application/pdf"))


async def test_text_that_is_longer_than_its_html_is_cut_too(server):
    nested = b"<ul><li>x" * 100
    async with fetcher(server, max_bytes=1000) as fetching:
        page = await fetching.fetch(server.page("/", nested, "text/html"))
    assert page.truncated
    assert len(page.text.encode()) <= 1000


@pytest.mark.parametrize("part", ["head", "body"])
async def test_a_server_that_drips_is_left_at_the_time_limit(part, server):
    def drip(line):
        line.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n" + b"\r\n" * (part == "body")
        )
        while not server.stopping.wait(0.02):
            line.sendall(b"x")

    server.answers["/"] = drip
    async with fetcher(server, timeout_seconds=0.4) as fetching:
        with pytest.raises(atoll.WebError, match=r"took longer than timeout_seconds=0\.4"):
            await fetching.fetch(server.url())


async def test_a_lookup_that_hangs_is_left_at_the_time_limit(server):
    free = threading.Event()

    def hang(*_):
        free.wait(30)
        return []

    async with fetcher(server, hang, timeout_seconds=0.2) as fetching:
        with pytest.raises(atoll.WebError, match=r"took longer than timeout_seconds=0\.2"):
            await fetching.fetch(server.url())
        free.set()


async def test_headers_without_end_are_refused(server):
    def flood(line):
        line.sendall(b"HTTP/1.1 200 OK\r\n")
        while not server.stopping.is_set():
            line.sendall(b"X-Header: " + b"y" * 1000 + b"\r\n")

    server.answers["/"] = flood
    async with fetcher(server) as fetching:
        with pytest.raises(atoll.WebError, match="failed"):
            await fetching.fetch(server.url())


@pytest.mark.parametrize(
    "words", [b"", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n"]
)
async def test_a_server_that_speaks_no_http_is_an_error(words, server):
    server.answers["/"] = words
    async with fetcher(server) as fetching:
        with pytest.raises(atoll.WebError, match=f"{HOST} failed"):
            await fetching.fetch(server.url())


async def test_a_server_that_is_not_there_is_an_error(server):
    url = server.url().replace(str(server.port), "1")
    async with fetcher(server, ports=(1,)) as fetching:
        with pytest.raises(atoll.WebError, match=r"does not answer .127\.0\.0\.1"):
            await fetching.fetch(url)


async def test_nothing_of_ours_is_sent(server, monkeypatch, tmp_path):
    (tmp_path / ".netrc").write_text(f"machine {HOST} login me password secret")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    first = server.page("/", b"one", Set_Cookie="a=b")
    async with fetcher(server) as fetching:
        await fetching.fetch(first)
        await fetching.fetch(server.page("/two", b"two"))
    names = {
        line.split(":")[0].lower()
        for request in server.requests
        for line in request.split("\r\n")[1:]
        if line
    }
    assert names == {"host", "user-agent", "accept", "accept-encoding", "connection"}


async def test_tls_is_asked_for_the_name_and_not_the_address(server):
    async with fetcher(server) as fetching:
        with pytest.raises(atoll.WebError, match="failed"):
            await fetching.fetch(server.url().replace("http:", "https:"))
    assert HOST in server.requests[0]  # the ClientHello has it in the open


async def test_a_page_is_given_again_from_the_cache_of_its_fetcher(server):
    url = server.page("/", b"hello")
    async with fetcher(server) as fetching, fetcher(server) as other:
        first, second = await fetching.fetch(url), await fetching.fetch(url + "#there")
        assert (first.from_cache, second.from_cache, second.url) == (False, True, url + "#there")
        assert not (await other.fetch(url)).from_cache
        await fetching.fetch(server.page("/private", b"x", Cache_Control="no-store"))
        assert not (await fetching.fetch(server.url("/private"))).from_cache
    assert len(server.requests) == 4


def test_the_cache_is_bounded_in_number_size_and_time():
    now = [0.0]
    cache = Cache(10, now=lambda: now[0])

    def page(text: str) -> Page:
        return Page(
            url="", final_url="", status=200, content_type="", title="", text=text, truncated=False
        )

    for number in range(MAX_PAGES + 5):
        cache.put(str(number), page("x"))
    assert len(cache) == MAX_PAGES
    assert cache.get("0") is None
    assert cache.get("20") is not None
    cache.put("large", page("x" * 15_999_990))
    cache.put("more", page("y" * 100))
    assert cache.get("large") is None
    assert cache.characters <= 16_000_000
    now[0] = 10.0
    assert cache.get("more") is None


@pytest.mark.spec("R4.20")
async def test_a_page_that_takes_its_parser_down_is_an_error(server, monkeypatch):
    monkeypatch.setattr("atoll.agent.web.reading._MEMORY", 100 << 20)
    body = b"<p>" + b"<b>" * 1_500_000
    async with fetcher(server) as fetching:
        with pytest.raises(atoll.WebError, match="the page cannot be read"):
            await fetching.fetch(server.page("/", body, "text/html"))
