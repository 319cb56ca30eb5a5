"""Output that comes as messages: a shape that is none ends the channel, and raises nothing."""

from __future__ import annotations

import asyncio
import os

import pytest

from atoll.channel import ChannelEndedError, HostChannel


@pytest.mark.parametrize("stream", ["1e999", "-1e999", '"x"', "[]", "null"])
async def test_output_of_a_stream_that_is_no_number_breaks_the_protocol(stream):
    answers, requests = os.pipe(), os.pipe()
    channel = HostChannel(answers[0], requests[1])
    channel.on_output = lambda _stream, _data: None
    waiting = channel.request("execute", {})
    line = f'{{"jsonrpc":"2.0","method":"output","params":{{"stream":{stream},"text":"x"}}}}\n'
    os.write(answers[1], line.encode())
    try:
        with pytest.raises(ChannelEndedError, match="output of no known shape"):
            async with asyncio.timeout(5):
                await waiting
    finally:
        channel.close()
        os.close(answers[1])
        os.close(requests[0])
