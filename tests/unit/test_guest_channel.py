"""The guest's end of the channel: how long it waits for the host to close."""

from __future__ import annotations

import os

import pytest

from atoll.guest.core.channel import Channel, ChannelClosedError
from atoll.guest.core.interrupt import InterruptGate


def test_a_guest_for_one_cell_sees_the_host_close_and_goes_on_if_there_is_more():
    requests, answers = os.pipe(), os.pipe()
    channel = Channel(requests[0], answers[1], InterruptGate())
    try:
        channel.await_end(1)  # nothing comes
        os.write(requests[1], b"more")
        channel.await_end(60_000)
        os.read(requests[0], 100)
        os.close(requests[1])
        with pytest.raises(ChannelClosedError):
            channel.await_end(60_000)
    finally:
        for fd in (requests[0], *answers):
            os.close(fd)
