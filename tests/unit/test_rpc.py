"""The codec of both ends: what it takes, and what it refuses before parsing."""

from __future__ import annotations

import json

import pytest

from atoll.guest.shared import rpc


def test_messages_round_trip():
    buffer = rpc.LineBuffer()
    sent = rpc.request("a1", "execute", {"code": "x = '\ud800\n'"}) + rpc.result(
        "a1", [1, None, "é"]
    )
    first, second = buffer.feed(sent)
    assert first == {
        "jsonrpc": "2.0",
        "id": "a1",
        "method": "execute",
        "params": {"code": "x = '\ud800\n'"},
    }
    assert second["result"] == [1, None, "é"]


def test_a_stream_may_be_cut_anywhere():
    data = b"".join(rpc.result(f"i{n}", "x" * n) for n in range(20))
    buffer = rpc.LineBuffer()
    messages = [message for n in range(len(data)) for message in buffer.feed(data[n : n + 1])]
    assert [message["id"] for message in messages] == [f"i{n}" for n in range(20)]


def test_lines_are_plain_json_for_any_other_peer():
    assert json.loads(rpc.error("x", -32000, "no")) == {
        "jsonrpc": "2.0",
        "id": "x",
        "error": {"code": -32000, "message": "no"},
    }


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"hello",
        b"[]",
        b"5",
        b"{}",
        b'{"jsonrpc": "2.0"}',
        b'{"jsonrpc": "1.0", "id": "a", "result": 1}',
        b'{"jsonrpc": "2.0", "id": 1, "result": 1}',
        b'{"jsonrpc": "2.0", "result": 1}',
        b'{"jsonrpc": "2.0", "id": "a", "result": 1, "error": {"message": "x"}}',
        b'{"jsonrpc": "2.0", "id": "a", "error": "text"}',
        b'{"jsonrpc": "2.0", "id": "a", "error": {"message": 5}}',
        b'{"jsonrpc": "2.0", "method": 5}',
        b'{"jsonrpc": "2.0", "method": "m", "params": [1]}',
        b'{"jsonrpc": "2.0", "id": "a", "result": NaN}',
        b'{"jsonrpc": "2.0", "id": "a", "result": -Infinity}',
        b'{"jsonrpc": "2.0", "id": "a", "result": 1e999}',
        b'{"jsonrpc": "2.0", "id": "a", "result": {"x": [-1e999]}}',
        b'{"jsonrpc": "2.0", "id": "a", "result": 1} {}',
        b'{"jsonrpc": "2.0", "id": "a", "result": "\xff"}',
        b'{"jsonrpc": "2.0", "id": "a", "result": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"jsonrpc": "2.0", "id": "a", "result": ' + b'{"k":' * 300 + b"1" + b"}" * 301,
    ],
)
def test_what_is_no_message_is_refused(line):
    with pytest.raises(rpc.ProtocolError):
        rpc.decode(line)


def test_brackets_in_strings_do_not_count_as_depth():
    line = rpc.result("a", "[{" * 5000 + '\\"[')
    assert rpc.decode(line)["result"] == "[{" * 5000 + '\\"['


def test_a_line_over_the_cap_is_refused_while_it_comes(monkeypatch):
    monkeypatch.setattr(rpc, "MAX_MESSAGE_BYTES", 1000)
    buffer = rpc.LineBuffer()
    buffer.feed(b"x" * 900)
    with pytest.raises(rpc.ProtocolError, match="over 1,000 bytes"):
        buffer.feed(b"x" * 200)


def test_our_own_message_over_the_cap_is_not_sent(monkeypatch):
    monkeypatch.setattr(rpc, "MAX_MESSAGE_BYTES", 1000)
    with pytest.raises(rpc.MessageTooLargeError, match="the limit is 1,000"):
        rpc.result("a", "x" * 2000)


def test_patching_json_does_not_reach_the_codec(monkeypatch):
    monkeypatch.setattr(json, "dumps", lambda *_a, **_k: "FORGED")
    monkeypatch.setattr(json.JSONEncoder, "encode", lambda *_a: "FORGED")
    assert rpc.decode(rpc.result("a", 1))["result"] == 1
