"""Hostile registries: other schemes, bodies without an end, trickles, lies. All end in words."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import time

import pytest
from odd_registry import served

from atoll.errors import ImageError
from atoll.images import get_image, http, registry

AUTH = base64.b64encode(b"team:secret").decode()
FOR_EVER = 1 << 30
"""Pieces of a body that has no end."""


@pytest.fixture(autouse=True)
def short_patience(monkeypatch):
    monkeypatch.setattr(registry, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(http, "TIMEOUT_SECONDS", 1)


def refused(odd, words: str, cache) -> None:
    """Check that pulling ends in words, and keeps nothing of what came."""
    with served(odd) as host, pytest.raises(ImageError, match=words):
        get_image(f"{host}/team/env:1")
    assert not list((cache / "images" / "images").glob("*[!k]"))
    assert not os.listdir(cache / "images" / "building")


def send(
    handler, status: int = 200, pieces: int = 1, pause: float = 0, body=b"x" * 65536, **headers
):
    """Answer with a body of pieces, without its length unless a header says so."""
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    with contextlib.suppress(OSError):  # the client has heard enough
        for _ in range(pieces):
            handler.wfile.write(body)
            time.sleep(pause)
    return True


def on(part: str, **answer):
    """Answer requests whose path has a part; the others go on as usual."""
    return lambda handler: part in handler.path and send(handler, **answer)


@pytest.mark.parametrize(
    "place",
    [
        "file:///etc/passwd",
        "ftp://127.0.0.1/x",
        "gopher://x",
        "http://10.0.0.1/x",
        "//10.0.0.1/x",
        "data:,x",
    ],
)
@pytest.mark.parametrize("part", ["/manifests/", "/blobs/"])
def test_a_redirect_to_another_scheme_is_refused(odd, cache, part, place):
    odd.instead = on(part, status=307, body=b"", Location=place)
    refused(odd, "not https|is not allowed", cache)


@pytest.mark.parametrize(
    "realm", ["file:///etc/passwd", "ftp://x/y", "http://10.0.0.1/token", "x\\y"]
)
def test_a_token_server_of_another_scheme_is_refused(odd, cache, realm):
    challenge = f'Bearer realm="{realm}",service="s"'
    odd.instead = on("/v2/team", status=401, body=b"", WWW_Authenticate=challenge)
    refused(odd, "not https|401|404|no token", cache)


def test_redirects_in_a_circle_end(odd, cache):
    odd.instead = lambda handler: (
        "/manifests/" in handler.path
        and send(
            handler, 307, body=b"", Location=f"http://{handler.headers['Host']}{handler.path}x"
        )
    )
    refused(odd, "30.|redirect", cache)
    assert len(odd.asked) < 20


def test_the_password_goes_to_no_other_host(odd, cache, monkeypatch, tmp_path):
    """Neither with a redirect of the manifest, nor of the token server."""
    with served(odd) as host, served(odd) as thief:
        facts = {"auths": {host: {"auth": AUTH}}}
        (tmp_path / "docker" / "config.json").write_text(json.dumps(facts))
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))

        def redirect(handler):
            if handler.headers["Host"] == thief:
                return send(handler, 401, body=b"{}")
            if handler.path.startswith(("/token", "/v2/team")) and handler.headers.get(
                "Authorization"
            ):
                return send(handler, 307, body=b"", Location=f"http://{thief}{handler.path}")
            return False

        odd.instead = redirect
        with pytest.raises(ImageError):
            get_image(f"{host}/team/env:1")
        stolen = [headers for at, _, headers in odd.asked if at == thief]
        assert stolen
        assert not [headers for headers in stolen if "Authorization" in headers]


ENDLESS = {
    "manifest": (on("/manifests/", pieces=FOR_EVER), "more than"),
    "error": (on("/manifests/", status=500, pieces=FOR_EVER), "500"),
    "token": (on("/token", pieces=FOR_EVER), "."),
    "blob": (on("/blobs/", pieces=FOR_EVER), "is larger than"),
    "headers": (on("/manifests/", **{f"X_{n}": "y" for n in range(200)}), "headers"),
    "one header": (on("/manifests/", X="y" * 200_000), "header line"),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_body_without_an_end_is_given_up(odd, cache, name):
    odd.instead, words = ENDLESS[name]
    refused(odd, words, cache)


SLOW = {
    "manifest": (on("/manifests/", pieces=600, pause=0.1, body=b" "), "only .* came|timed out"),
    "error": (on("/manifests/", status=500, pieces=600, pause=0.1, body=b" "), "500"),
    "token": (on("/token", pieces=600, pause=0.1, body=b" "), "only .* came|timed out"),
    "blob": (on("/blobs/", pieces=600, pause=0.1, body=b" "), "broke: only .* came"),
}


@pytest.mark.parametrize("name", SLOW)
def test_a_body_that_trickles_is_given_up(odd, cache, monkeypatch, name):
    monkeypatch.setattr(registry, "ATTEMPTS", 2)
    odd.instead, words = SLOW[name]
    refused(odd, words, cache)


def test_headers_that_trickle_are_given_up(odd, cache):
    def trickle(handler):
        if "/manifests/" not in handler.path:
            return False
        with contextlib.suppress(OSError):
            for _ in range(600):
                handler.wfile.write(b"H")
                time.sleep(0.1)
        return True

    odd.instead = trickle
    refused(odd, "127.0.0.1", cache)


def test_a_slow_blob_that_makes_progress_arrives(odd, monkeypatch):
    monkeypatch.setattr(http, "LEAST_BYTES", 100)
    files = odd.files

    def steadily(handler):
        name = handler.path.rpartition("/")[2].removeprefix("sha256:")
        if "/blobs/" not in handler.path or len(files[name]) < 3000:
            return False
        handler.send_response(200)
        handler.end_headers()
        for at in range(0, len(files[name]), 1000):
            handler.wfile.write(files[name][at : at + 1000])
            time.sleep(0.1)
        return True

    odd.instead = steadily
    with served(odd) as host:
        get_image(f"{host}/team/env:1").close()


LIES = {
    "a blob that is shorter each time": (on("/blobs/", body=b"x"), "connection .* broke"),
    "a blob of another digest": (on("/blobs/", body=b"x" * 30_000), "is larger|is damaged"),
    "a web page": (on("/manifests/", body=b"<html>", Content_Length="6"), "not JSON"),
    "nothing": (on("/manifests/", body=b""), "not JSON"),
    "a token with a line break": (on("/token", body=b'{"token": "a\\r\\nHost: x"}'), "no token"),
    "a token that is a list": (on("/token", body=b'["x"]'), "no token"),
    "a challenge of another kind": (
        on("/v2/team", status=401, body=b"", WWW_Authenticate="Negotiate x"),
        "401",
    ),
    "words for a terminal": (
        on("/manifests/", status=500, body=b'{"errors": [{"message": "\\u001b[2Jx"}]}'),
        r"500 \?\[2Jx",
    ),
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_refused_in_words(odd, cache, name):
    odd.instead, words = LIES[name]
    refused(odd, words, cache)


def test_a_part_that_begins_elsewhere_is_not_kept(odd):
    """A registry answers a request for the rest of a blob with another part of it."""
    odd.cut = 15_000

    def shifted(handler):
        name = handler.path.rpartition("/")[2].removeprefix("sha256:")
        if "Range" not in handler.headers:
            return False
        odd.cut, odd.instead = 0, lambda _handler: False
        return send(
            handler, 206, body=odd.files[name][10_000:], Content_Range="bytes 10000-19999/x"
        )

    odd.instead = shifted
    with served(odd) as host:
        with pytest.raises(ImageError, match="is damaged"):
            get_image(f"{host}/team/env:1")
        get_image(f"{host}/team/env:1").close()


def test_another_manifest_than_the_digest_says_is_refused(odd, cache):
    odd.instead = on("/manifests/", body=b'{"schemaVersion": 2, "layers": []}')
    with served(odd) as host, pytest.raises(ImageError, match="another manifest than"):
        get_image(f"{host}/team/env@sha256:{'0' * 64}")
