"""Large messages of a hostile guest: refused before they cost much, and followed by a rest."""

from __future__ import annotations

import asyncio
import json
import os
import threading

import pytest

import atoll
from atoll.guest.shared import rpc, values
from atoll.rpc import peer
from atoll.sandbox import result_fields, variables
from atoll.sandbox.channel import HostChannel


def line_of(result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":"x","result":' + result + b"}"


FILLER = b'"' + b"x" * rpc.LARGE + b'"'


@pytest.mark.parametrize("number", [b"9" * 65, b"-" + b"1" * 4000, b"1." + b"1" * 65, b"0" * 9999])
def test_a_number_that_takes_long_to_convert_is_refused(number):
    with pytest.raises(rpc.ProtocolError, match="a number of more than 64 digits"):
        rpc.decode(line_of(b"[" + FILLER + b"," + number + b"]"))


@pytest.mark.parametrize(
    "value", ["0" * 100_000, '\\"' + "1" * 100_000, {"9" * 70_000: 1}, [2**63, 1e308, "7" * 70_000]]
)
def test_digits_in_texts_are_texts(value):
    assert rpc.decode(line_of(json.dumps(value).encode()))["result"] == value


def test_numbers_that_values_sends_stay_whole():
    for number in (2**63 - 1, -(2**63), 2**64, 10**5000, 1.7976931348623157e308, 5e-324):
        sent = values.encode([number, "x" * rpc.LARGE])
        assert values.decode(rpc.decode(rpc.result("x", sent))["result"])[0] == number


def test_more_keys_than_can_be_read_in_time_are_refused(monkeypatch):
    monkeypatch.setattr(rpc, "MAX_KEYS", 5000)
    many = {f"key {number} of many": 1 for number in range(6000)}
    with pytest.raises(rpc.ProtocolError, match="more than 5,000 keys"):
        rpc.decode(line_of(json.dumps(many).encode()))
    with pytest.raises(rpc.MessageTooLargeError, match="more than 5,000 keys"):
        rpc.result("x", many)
    assert rpc.decode(line_of(json.dumps(":" * 100_000).encode()))["result"] == ":" * 100_000


@pytest.mark.parametrize(
    ("value", "larger"),
    [
        ([1] * 9, False), ([1] * 10, True), ({"a": [1] * 5}, False), ("x" * 100, False),
        ("x" * 101, True), ([["x" * 60], ["x" * 60]], True), ([[[[[[]]]]]], False), (None, False),
    ],
)  # fmt: skip
def test_the_size_of_an_encoded_value_is_known_without_decoding(value, larger):
    assert values.is_larger(value, 10, 100) is larger


@pytest.mark.parametrize(
    "value",
    [[1] * 700_000, [[1] * 100] * 7000, "x" * (25 << 20), {"$": "set", "v": ["k"] * 700_000}],
    ids=["list", "nested", "text", "set"],
)
def test_a_value_of_a_cell_is_refused_before_it_is_decoded(value, monkeypatch):
    monkeypatch.setattr(values, "decode_plain", lambda _: pytest.fail("it was decoded"))
    answer = {"kind": "ok", "exit_code": 0, "value_repr": "x", "value": value,
              "files": {"created": [], "modified": []}}  # fmt: skip
    with pytest.raises(ValueError, match="too large"):
        result_fields.read_cell(answer)


@pytest.mark.parametrize(
    "value", [list(range(99_000)), [(1,)] * 20_000, b"x" * (4 << 20), "x" * (4 << 20), {1: 2}]
)
def test_every_value_that_a_guest_sends_is_taken(value):
    encoded = values.encode(value, result_fields.VALUE_ITEMS, result_fields.VALUE_BYTES)
    assert result_fields._value(encoded) == value


async def test_a_guest_that_sends_large_messages_is_not_read_for_a_while(monkeypatch):
    monkeypatch.setattr(peer, "REST_ABOVE", -1.0)
    read, guest = os.pipe()
    requests, write = os.pipe()
    channel, heard = HostChannel(read, write), []
    rests = []
    monkeypatch.setattr(
        channel, "_rest", lambda took: (rests.append(took), HostChannel._rest(channel, 0.05))
    )
    channel.on_output = lambda _stream, data: heard.append(len(data))
    small = rpc.notification("output", {"stream": 1, "text": "s"})
    large = rpc.notification("output", {"stream": 1, "text": "l" * (1 << 20)})

    def send():
        os.write(guest, small)
        os.write(guest, large)
        os.write(guest, large)

    sender = threading.Thread(target=send)
    sender.start()
    async with asyncio.timeout(30):
        while len(heard) < 2:  # noqa: ASYNC110 - it is told by a callback
            await asyncio.sleep(0)
        assert heard == [1, 1 << 20]
        assert channel._resting  # the last large message is in the pipe, and stays there
        assert not asyncio.get_running_loop().remove_reader(read)
        while len(heard) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    sender.join()
    assert len(rests) >= 2
    channel.close()
    os.close(guest)
    os.close(requests)


async def test_a_large_variable_is_decoded_in_a_thread(monkeypatch):
    decode, threads = variables.decode, []

    def noted(name, answer):
        threads.append(threading.current_thread() is threading.main_thread())
        return decode(name, answer)

    monkeypatch.setattr(variables, "decode", noted)
    async with atoll.aio.create_sandbox(backend="native") as box:
        await box.execute("small, large = [1], list(range(200_000))")
        assert await box.get_variable("small") == [1]
        assert await box.get_variable("large") == list(range(200_000))
    assert threads == [True, False]
