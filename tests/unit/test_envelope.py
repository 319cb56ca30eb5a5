"""The envelope of a saved state: whatever is wrong with it is said before a guest gets a byte."""

from __future__ import annotations

import json
import multiprocessing
import os
import stat
import time

import pytest

import atoll
from atoll.guest.state.keeper import shortened
from atoll.state import envelope
from atoll.state import key as state_keys

FACTS = {"size": 3, "codec": "zlib", "left_out": {"lock": "cannot be pickled"}}
PYTHON = (3, 11, 7)


@pytest.fixture
def blob():
    return envelope.seal(b"abc", FACTS, PYTHON)


def test_what_was_sealed_is_described_and_comes_back(blob):
    info, payload = envelope.unseal(blob)
    assert (info.python, info.size, dict(info.left_out)) == (
        "3.11",
        3,
        {"lock": "cannot be pickled"},
    )
    assert abs(info.created - time.time()) < 60
    assert bytes(payload) == b"abc"
    assert atoll.describe_state(blob) == info


def test_every_flipped_bit_is_noticed(blob):
    for at in range(len(blob)):
        for bit in (1, 128):
            bad = bytearray(blob)
            bad[at] ^= bit
            with pytest.raises(atoll.StateError):
                envelope.unseal(bytes(bad))


def test_every_cut_is_noticed(blob):
    for size in range(len(blob)):
        with pytest.raises(atoll.StateError):
            envelope.unseal(blob[:size])
    with pytest.raises(atoll.StateError, match="cut or padded"):
        envelope.unseal(blob + b"x")


def _with_header(blob, **fields):
    magic, line, rest = blob.split(b"\n", 2)
    return b"\n".join((magic, json.dumps(json.loads(line) | fields).encode(), rest))


def test_each_fault_has_words_of_its_own(blob, monkeypatch):
    with monkeypatch.context() as other:
        other.setenv("ATOLL_STATE_KEY", "somebody else's key")
        foreign = envelope.seal(b"abc", FACTS, PYTHON)
    bad = {
        "not a saved state": b"\x80\x05K\x01.",
        "no signature": blob[: -envelope.MAC_BYTES],
        "cut or padded": blob[:-1],
        "cut within its header": blob[:40],
        "another key": foreign,
        "newer than this Atoll": _with_header(blob, version=2),
        "header is damaged": _with_header(blob, payload="3"),
        "has been changed": _with_header(blob, size=4),
    }
    for words, data in bad.items():
        with pytest.raises(atoll.StateError, match=words):
            envelope.unseal(data)
    with pytest.raises(atoll.StateError, match="bytes, not str"):
        envelope.unseal("text")  # type: ignore[arg-type]
    with pytest.raises(atoll.StateError, match=r"of Python 3\.11, and the guest's is 3\.12"):
        envelope.open_for(blob, (3, 12, 0), 100)
    with pytest.raises(atoll.StateError, match="max_state_bytes is 2"):
        envelope.open_for(blob, PYTHON, 2)


@pytest.mark.parametrize("header", [b"[" * 100_000, b"null", b"{}", b'{"version": "x"}', b"\xff"])
def test_a_header_of_any_shape_is_refused_in_words(header):
    with pytest.raises(atoll.StateError, match="header is damaged"):
        envelope.unseal(envelope.MAGIC + header + b"\n" + bytes(64))


@pytest.mark.parametrize(
    "lie",
    [{"codec": "rot13"}, {"codec": ["zlib"]}, {"size": -1}, {"size": True}, {"size": 1e9}, {"left_out": [1]}],
)  # fmt: skip
def test_what_a_guest_says_of_its_state_is_checked(lie):
    with pytest.raises(atoll.StateError, match="the guest"):
        envelope.seal(b"abc", FACTS | lie, PYTHON)


def test_more_than_can_be_named_is_counted():
    many = {f"v{n}": "why" for n in range(1500)}
    said = shortened(many)
    assert list(said.items())[-1] == ("...", "and 500 more")
    info = envelope.describe_state(envelope.seal(b"abc", FACTS | {"left_out": said}, PYTHON))
    assert dict(info.left_out) == said


def test_names_that_begin_alike_are_all_named():
    many = {f"{'x' * 300}{n}": "why" for n in range(5)}
    assert len(shortened(many)) == 5


def test_what_a_guest_says_is_cut():
    many = {f"{n:09}" + "\U0001f600" * 300: ["\U0001f600" * 5000] for n in range(5000)}
    info = envelope.describe_state(envelope.seal(b"abc", FACTS | {"left_out": many}, PYTHON))
    assert len(info.left_out) == envelope.MAX_LEFT_OUT
    assert (
        max(len(name + reason) for name, reason in info.left_out.items()) <= 2 * envelope.MAX_TEXT
    )


def test_a_short_key_is_refused(monkeypatch):
    monkeypatch.setenv("ATOLL_STATE_KEY", "short")
    with pytest.raises(atoll.ConfigError, match="at least 16 characters"):
        envelope.seal(b"abc", FACTS, PYTHON)


@pytest.mark.parametrize("text", ["many", "-1", "0", "nan", "inf"])
def test_a_cap_that_is_no_size_is_refused(monkeypatch, text):
    monkeypatch.setenv("STATE_MAX_SIZE_MB", text)
    with pytest.raises(atoll.ConfigError, match="STATE_MAX_SIZE_MB"):
        atoll.SandboxConfig()


@pytest.fixture
def home(monkeypatch, tmp_path):
    monkeypatch.delenv("ATOLL_STATE_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_without_a_key_each_user_gets_one_that_only_they_can_read(home):
    blob = envelope.seal(b"abc", FACTS, PYTHON)
    key = home / ".local/share/atoll/state.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert [path.name for path in key.parent.iterdir()] == ["state.key"]
    assert envelope.describe_state(blob).size == 3


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda key: key.chmod(0o644), "open to others"),
        (lambda key: key.write_bytes(b"short"), "damaged"),
        (lambda key: (key.rename(key.with_suffix(".old")), key.symlink_to(key.with_suffix(".old"))), "cannot be used"),
    ],
)  # fmt: skip
def test_a_key_that_is_not_fit_is_refused(home, spoil, words):
    state_keys.state_key()
    spoil(state_keys.default_path())
    with pytest.raises(atoll.StateError, match=words):
        state_keys.state_key()


def test_a_home_that_is_none_is_said(monkeypatch):
    monkeypatch.delenv("ATOLL_STATE_KEY")
    monkeypatch.setenv("HOME", "/proc/nowhere")
    with pytest.raises(atoll.StateError, match="set ATOLL_STATE_KEY instead"):
        state_keys.state_key()


def _report_key(start, queue):
    start.wait()
    queue.put(state_keys.state_key())


@pytest.mark.long
def test_processes_that_come_at_once_get_the_same_key(home):
    spawn = multiprocessing.get_context("spawn")
    start, queue = spawn.Event(), spawn.Queue()
    workers = [spawn.Process(target=_report_key, args=(start, queue)) for _ in range(4)]
    for worker in workers:
        worker.start()
    start.set()
    keys = {queue.get(timeout=60) for _ in workers}
    for worker in workers:
        worker.join()
    assert keys == {state_keys.default_path().read_bytes()}
    assert len(os.listdir(state_keys.default_path().parent)) == 1
