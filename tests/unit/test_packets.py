"""Messages with descriptors beside them: whole, in order, and none is left behind."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys

import pytest

from atoll.jail.supervisor import packets


@pytest.fixture
def ends():
    one, other = packets.pair()
    yield one, other
    one.close()
    other.close()


def test_a_message_comes_whole_with_its_descriptors_in_order(ends):
    one, other = ends
    pipes = [os.pipe() for _ in range(3)]
    packets.send(one, "big", [write for _, write in pipes], a=["ü" * 50_000])
    message = packets.receive(other)
    assert (message.kind, message.fields) == ("big", {"a": ["ü" * 50_000]})
    for number, fd in enumerate(message.fds):
        os.write(fd, str(number).encode())
        assert not os.get_inheritable(fd)
        os.close(fd)
    for number, (read, write) in enumerate(pipes):
        assert os.read(read, 9) == str(number).encode()
        os.close(read)
        os.close(write)


def test_messages_do_not_run_together(ends):
    one, other = ends
    for number in range(100):
        packets.send(one, "number", n=number)
    assert [packets.receive(other).fields["n"] for _ in range(100)] == list(range(100))


def test_the_end_is_no_message(ends):
    one, other = ends
    one.close()
    assert packets.receive(other) is None


def test_more_descriptors_than_there_is_room_for_are_closed(ends):
    one, other = ends
    read, write = os.pipe()
    before = os.listdir("/proc/self/fd")
    packets.send(one, "many", [write] * (packets.MAX_FDS + 1))
    with pytest.raises(packets.LostDescriptorsError):
        packets.receive(other)
    assert os.listdir("/proc/self/fd") == before
    os.close(read)
    os.close(write)


def test_descriptors_that_the_process_has_no_room_for_are_told():
    code = """
import os, resource
from atoll.jail.supervisor import packets
one, other = packets.pair()
packets.send(one, "three", [0, 1, 2])
free = os.open('/dev/null', os.O_RDONLY); os.close(free)
resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, free + 1))
try:
    packets.receive(other)
except packets.LostDescriptorsError:
    os.close(os.open('/dev/null', os.O_RDONLY))
    print('told')
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "told\n"


def test_a_full_socket_does_not_block_who_must_not_wait(ends):
    one, _ = ends
    one.setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            packets.send(one, "long", x="y" * 10_000)


def test_both_ends_are_packets():
    one, other = packets.pair()
    with one, other:
        assert one.type == other.type == socket.SOCK_SEQPACKET


def test_a_patient_sender_waits_for_room_for_descriptors_under_way(monkeypatch):
    shortage, slept = OSError(errno.ETOOMANYREFS, "too many references"), []
    answers = iter([*[shortage] * (packets.SEND_ATTEMPTS + 1), None])

    class Socket:
        def sendmsg(self, *_args):
            if answer := next(answers):
                raise answer

    monkeypatch.setattr(packets.time, "sleep", slept.append)
    packets.send_bytes(Socket(), b"x", [0], packets.PATIENT_ATTEMPTS)
    assert slept == [packets.PAUSE_SECONDS] * (packets.SEND_ATTEMPTS + 1)


def test_a_message_is_received_without_python_code_of_libraries(ends):
    """A zygote copies the pages of all that it runs, for each guest."""
    one, other = ends
    packets.send(one, "fork", number=1, limits={"memory": None})
    run: set[str] = set()
    sys.setprofile(
        lambda frame, event, _: run.add(frame.f_code.co_filename) if event == "call" else None
    )
    try:
        message = packets.receive(other)
    finally:
        sys.setprofile(None)
    assert message.fields == {"number": 1, "limits": {"memory": None}}
    assert run <= {packets.__file__, "<string>"}
