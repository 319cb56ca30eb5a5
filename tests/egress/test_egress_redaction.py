"""The search for secrets: every way to write and split one, in time linear in what is searched."""

from __future__ import annotations

import base64
import html
import json
import quopri
import random
import time
from urllib.parse import quote

import pytest

from atoll.egress.credentials import Secrets
from atoll.egress.redactor import Needle
from atoll.errors import ConfigError
from atoll.network import MAX_SECRETS, SECRET_BYTES, NetworkPolicy

SECRET = 'sk-"very/secret"+value=&<ok>'


def secrets_of(*values: str) -> Secrets:
    headers = {f"X-{number}": value for number, value in enumerate(values)}
    return Secrets(NetworkPolicy(["a.test:81"], headers={"a.test:81": headers}))


def search(secrets: Secrets, data: bytes, size: int) -> bytes:
    redactor = secrets.redactor()
    pieces = [redactor.feed(data[at : at + size]) for at in range(0, len(data), size)]
    return b"".join(pieces) + redactor.feed(b"", last=True)


def every(data: bytes, size: int, between: bytes) -> bytes:
    return between.join(data[at : at + size] for at in range(0, len(data), size))


def all_percent(data: bytes) -> bytes:
    return b"".join(b"%%%02x" % byte for byte in data)


WRITTEN = {
    "base64 lines": lambda data: base64.encodebytes(data * 3),
    "base64 of a letter a line": lambda data: every(base64.b64encode(data), 1, b"\r\n\t"),
    "base64 in JSON": lambda data: json.dumps(base64.encodebytes(data).decode()).encode(),
    "base64 in a URL": lambda data: quote(base64.b64encode(data), safe="").encode(),
    "base64url lines": lambda data: every(base64.urlsafe_b64encode(data), 19, b"\n "),
    "hex lines": lambda data: every(data.hex().encode(), 7, b"\n"),
    "hex with colons": lambda data: data.hex(":").upper().encode(),
    "hex dump": lambda data: data.hex(" ", 2).encode(),
    "every byte in percent": all_percent,
    "percent of percent": lambda data: quote(quote(data, safe=""), safe="").encode(),
    "JSON in JSON": lambda data: json.dumps(json.dumps(data.decode())).encode(),
    "all of it in \\u": lambda data: b"".join(b"\\u%04X" % byte for byte in data),
    "all of it in \\x": lambda data: b"".join(b"\\x%02x" % byte for byte in data),
    "all of it in octal": lambda data: b"".join(b"\\%03o" % byte for byte in data),
    "HTML": lambda data: html.escape(data.decode()).encode(),
    "all of it in HTML": lambda data: b"".join(b"&#x%X;" % byte for byte in data),
    "HTML names": lambda data: data.replace(b"/", b"&sol;").replace(b"+", b"&plus;"),
    "quoted-printable": lambda data: quopri.encodestring(b"x" * 60 + data),
    "soft line breaks": lambda data: every(data, 5, b"=\r\n"),
    "all quoted-printable": lambda data: b"".join(b"=%02X" % byte for byte in data),
    "folded": lambda data: every(data, 9, b"\r\n  "),
    "UTF-16": lambda data: data.decode().encode("utf-16-le"),
    "UTF-32": lambda data: data.decode().encode("utf-32-be"),
    "after half an escape": lambda data: b"%4" + quote(data, safe="").encode(),
}


@pytest.mark.parametrize("way", WRITTEN)
@pytest.mark.parametrize("before", ["", "a", "ab"])
def test_a_secret_is_found_in_every_writing_and_at_every_split(way, before):
    secrets = secrets_of(f"Bearer {SECRET}")
    text = b"<" + WRITTEN[way](before.encode() + SECRET.encode()) + b">"
    whole = search(secrets, text, len(text))
    assert secrets.redactor().whole(text) == whole
    left = whole.replace(b"*", b"")
    assert whole.count(b"*") >= len(SECRET) - 4, whole
    for piece in (b"secret", b"very", b"value"):
        assert piece not in left.replace(b"\0", b"")
    for size in (1, 2, 3, 5, 7, 64):
        assert search(secrets, text, size) == whole


@pytest.mark.parametrize("secret", ["41bcdefghijklmn/op", "ufeedfacecafe/01", "n0123456789/abc"])
@pytest.mark.parametrize("prefix", ["%", "%4", "\\", "\\u", "\\x", "&#", "&", "="])
def test_text_before_a_secret_does_not_hide_its_escapes(secret, prefix):
    text = prefix.encode() + secret.replace("/", "%2F").encode()
    found = secrets_of(secret).redactor().whole(text)
    assert len(found.replace(b"*", b"")) <= len(prefix), found


def test_secrets_of_every_shape_are_found_at_every_split():
    chance = random.Random(7)
    for _ in range(300):
        letters = chance.choice(["ab", "-", "a%", "\\n", ".*+?()[]{}|^$", "a=\\&;#x41%"])
        value = "".join(chance.choices(letters, k=chance.randint(4, 40)))
        secrets = secrets_of(value)
        noise = ["".join(chance.choices(letters + " ", k=chance.randint(0, 30))) for _ in range(3)]
        text = f"{noise[0]}{value}{noise[1]}{value[:-1]}{noise[2]}".encode()
        whole = search(secrets, text, len(text))
        assert value.encode() not in whole
        assert len(whole) == len(text)
        split = search(secrets, text, chance.randint(1, 9))
        assert value.encode() not in split
        assert len(split) == len(text)


def test_overlapping_occurrences_are_all_covered():
    chance = random.Random(3)
    for _ in range(2000):
        text = bytes(chance.choices(b"ab", k=chance.randint(1, 9)))
        data = bytes(chance.choices(b"ab", k=chance.randint(0, 60)))
        covered = {at for start, end in Needle(text).spans(data) for at in range(start, end)}
        starts = [at for at in range(len(data)) if data.startswith(text, at)]
        assert covered == {at for start in starts for at in range(start, start + len(text))}
        begun = max(size for size in range(len(text)) if data.endswith(text[:size]))
        assert Needle(text).begun(data) == begun


def test_a_stream_without_a_secret_is_not_held_back():
    redactor = secrets_of(SECRET).redactor()
    assert redactor.feed(b"data: one\n\n") == b"data: one\n\n"
    assert redactor.feed(b"data: s") == b"data: "
    assert redactor.feed(b"o\n\n") == b"so\n\n"


def test_what_is_held_back_is_bounded():
    secrets = secrets_of("-" * 40)
    for filler in (b" ", b"-", b"\r\n"):
        redactor = secrets.redactor()
        redactor.feed(b"-" * 20)
        given = sum(len(redactor.feed(filler * 50_000)) for _ in range(10))
        assert given > 450_000 * len(filler)


REPETITIVE = ["-" * 2000, "-" * 1000 + "x" + "-" * 999, "ab" * 4000, "a" * 8192, "%2d" * 600]


@pytest.mark.parametrize(
    "unit", [b"-", b"a", b"ab", b"%2d", b"LS0t", b"2d ", b"\\u002d", b" ", b"&"]
)
@pytest.mark.parametrize("secret", REPETITIVE, ids=range(len(REPETITIVE)))
def test_the_time_is_linear_in_the_bytes(secret, unit):
    secrets = secrets_of(secret)
    data = unit * (4 * 60_000 // len(unit))

    def seconds(text: bytes, size: int) -> float:
        search(secrets, text[: len(text) // 4], size)  # the tables of the secret are made once
        began = time.process_time()
        search(secrets, text, size)
        return time.process_time() - began

    for size in (65_536, 9_000):
        few = min(seconds(data[: len(data) // 4], size) for _ in range(3))
        assert seconds(data, size) < 10 * max(few, 0.002)


@pytest.mark.parametrize("secret", ["-", "-x", "ab"])
def test_the_time_is_linear_in_the_secret(secret):
    def seconds(length: int) -> float:
        secrets, data = secrets_of((secret * length)[:length]), secret[:1].encode() * 200_000
        search(secrets, data, 65_536)
        began = time.process_time()
        search(secrets, data, 65_536)
        return time.process_time() - began

    assert seconds(8000) < 12 * max(seconds(2000), seconds(2000), 0.002)


def test_a_policy_has_a_bounded_number_of_secrets_of_bounded_size():
    with pytest.raises(ConfigError, match=f"more than {SECRET_BYTES}"):
        secrets_of("x" * (SECRET_BYTES + 1))
    with pytest.raises(ConfigError, match=f"more than {MAX_SECRETS}"):
        secrets_of(*(f"value-{number}" for number in range(MAX_SECRETS + 1)))
    secrets_of(*(f"value-{number}" for number in range(MAX_SECRETS)))
