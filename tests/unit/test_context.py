"""The shared context on the host's side."""

from __future__ import annotations

import fcntl
import gc
import os

import pytest

from atoll.errors import ConfigError
from atoll.guest.core import context as guest_context
from atoll.sandbox import context as contexts
from atoll.sandbox.context import Context


@pytest.mark.parametrize(
    "text", ["a" * 70_000, "é" * 70_000, "Ω" * 70_000, "😀" * 70_000, "\udc80" * 70_000]
)
def test_the_file_is_sealed_and_reads_back_mapped_and_plain(text):
    context = Context.from_text(text)
    facts = context.describe()
    assert fcntl.fcntl(context.fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE
    for way in (guest_context._map_text, None):
        if way:
            found = way(context.fd, facts["width"], facts["length"], facts["ascii"])
        else:
            found = guest_context._read_text(context.fd, facts["width"], facts["length"])
        assert found == text
        assert hash(found) == hash(text)
        assert found[10:20] == text[10:20]
        assert (found + "x")[-1] == "x"


def test_an_unknown_layout_falls_back_to_the_plain_way(monkeypatch):
    context = Context.from_text("b" * 100_000)
    monkeypatch.setattr(guest_context, "_TYPE_AT", 0)
    assert guest_context.load(os.dup(context.fd), 1, 100_000, True) == ("b" * 100_000, False)


def test_one_str_is_one_file_while_somebody_uses_it():
    text = "shared " * 20_000
    first, second = contexts.share(text), contexts.share(text)
    assert first is second
    fd = first.fd
    del first, second
    gc.collect()
    with pytest.raises(OSError):
        os.fstat(fd)


def test_small_contexts_are_sent_not_shared():
    assert contexts.share("small") is None
    assert contexts.share({"a": 1}) is None


def test_a_file_that_is_not_ascii_is_decoded(tmp_path):
    path = tmp_path / "umlaut.txt"
    path.write_text("ü" * 1000, encoding="latin-1")
    assert Context.from_file(path, encoding="latin-1").value == "ü" * 1000


def test_an_empty_file_is_an_empty_text(tmp_path):
    path = tmp_path / "empty"
    path.touch()
    assert Context.from_file(path).value == ""


@pytest.mark.parametrize("value", [b"bytes", bytearray(3), object(), {"f": print}, [{1, object()}]])
def test_what_is_neither_text_nor_data_is_refused(value):
    with pytest.raises(ConfigError, match="a context must be text or plain data"):
        contexts.share(value)
