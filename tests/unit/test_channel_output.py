"""What ends the host's channel: output of no known shape, and a pipe that cannot be written to."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest

from atoll.channel import ChannelEndedError, HostChannel


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
    channel = HostChannel(answers[0], requests[1])

    def full(_fd: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        waiting = channel.request("execute", {})
    assert waiting.exception().fault == "the host cannot write to it: No space left on device"
    channel.close()
    os.close(answers[1])
    os.close(requests[0])
