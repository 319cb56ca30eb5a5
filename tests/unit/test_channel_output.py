"""What ends the host's channel: output of no known shape, and a pipe that cannot be written to."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest

from atoll.sandbox.channel import ChannelEndedError, HostChannel


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        ("1e999", "a number over all limits"),
        ("-1e999", "a number over all limits"),
        ('"x"', "output of no known shape"),
        ("[]", "output of no known shape"),
        ("null", "output of no known shape"),
    ],
)
async def test_output_of_a_stream_that_is_no_number_breaks_the_protocol(stream, words):
    answers, requests = os.pipe(), os.pipe()
    channel = HostChannel(answers[0], requests[1])
    channel.on_output = lambda _stream, _data: None
    waiting = channel.request("execute", {})
    line = f'{{"jsonrpc":"2.0","method":"output","params":{{"stream":{stream},"text":"x"}}}}\n'
    os.write(answers[1], line.encode())
    try:
        with pytest.raises(ChannelEndedError, match=words):
            async with asyncio.timeout(5):
                await waiting
    finally:
        channel.close()
        os.close(answers[1])
        os.close(requests[0])


async def test_a_request_that_cannot_be_written_fails_at_once(monkeypatch):
    answers, requests = os.pipe(), os.pipe()

    def full(_fd: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        channel = HostChannel(answers[0], requests[1])
        waiting = channel.request("execute", {})
    assert waiting.exception().fault == "the host cannot write to it: No space left on device"
    channel.close()
    os.close(answers[1])
    os.close(requests[0])


async def test_a_request_is_unread_only_if_the_guest_read_none_of_it():
    """What the guest has begun is never run again, though it left the answer to a call unread."""
    for reads, later in ((0, b""), (0, b"answer\n"), (1, b""), (9_999, b"answer\n")):
        answers, requests = os.pipe(), os.pipe()
        channel = HostChannel(answers[0], requests[1])
        channel.send_bytes(b"earlier\n")
        os.read(requests[0], 8)
        channel.request("execute", {})
        reads and os.read(requests[0], reads)
        channel.send_bytes(later)
        channel.end(ChannelEndedError())
        channel.request("interrupts", {})
        assert channel.unread is (reads == 0), (reads, later)
        channel.close()
        os.close(answers[1])
        os.close(requests[0])


async def test_a_request_to_a_guest_that_has_gone_is_unread():
    answers, requests = os.pipe(), os.pipe()
    channel = HostChannel(answers[0], requests[1])
    channel.end(ChannelEndedError())
    channel.request("execute", {})
    assert channel.unread
    channel.close()
    for fd in (answers[1], requests[0]):
        os.close(fd)
