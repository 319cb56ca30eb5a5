"""Descriptors on their way to a guest: sent without waiting, received in order, one way only."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

import atoll
from atoll.errors import SandboxError
from atoll.guest.rights import Rights
from atoll.rights import RightsSocket

FIND = """
import os, socket
def find():
    for fd in range(5, 4096):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
                return fd
        except OSError:
            pass
"""


@pytest.fixture
def sender():
    with RightsSocket() as made:
        yield made
    made.close()


def test_descriptors_arrive_in_the_order_they_were_sent(sender):
    guest = Rights(sender.guest_fd)
    for text in (b"first", b"second"):
        read, write = os.pipe()
        os.write(write, text)
        os.close(write)
        sender.send(read)
        os.close(read)
    for text in (b"first", b"second"):
        fd = guest.receive()
        assert os.read(fd, 10) == text
        assert not os.get_inheritable(fd)
        os.close(fd)


def test_receiving_what_was_not_sent_fails_at_once(sender):
    with pytest.raises(OSError):
        Rights(sender.guest_fd).receive()


def test_a_guest_that_never_receives_does_not_hold_up_the_host(sender):
    with pytest.raises(SandboxError, match="does not take"):
        for _ in range(10_000):
            sender.send(0)


def test_a_guest_that_closed_its_end_is_an_error_in_words():
    with RightsSocket() as sender:
        pass
    with pytest.raises(SandboxError, match="cannot be given a descriptor"):
        sender.send(0)
    sender.close()


def test_nothing_can_be_sent_to_the_host(sender):
    with socket.socket(fileno=os.dup(sender.guest_fd)) as guest, pytest.raises(BrokenPipeError):
        guest.send(b"x")


def test_both_ends_are_closed_if_the_start_fails():
    def start():
        with RightsSocket() as sender:
            ends.append(sender)
            raise ValueError

    ends: list[RightsSocket] = []
    with pytest.raises(ValueError):
        start()
    assert (ends[0].guest_fd, ends[0]._ours.fileno()) == (-1, -1)


@pytest.mark.parametrize("option", [17, 77])  # SO_PEERCRED, SO_PEERPIDFD
def test_a_guest_learns_nothing_of_the_host_from_it(option):
    with atoll.create_sandbox(backend="native") as box:
        code = f"{FIND}\nimport struct\nend = socket.socket(fileno=find())\n"
        result = box.execute(f"{code}struct.unpack('i', end.getsockopt(1, {option}, 4))[0]")
    assert result.value == 0 if option == 17 else result.error_type == "OSError", result


def test_a_guest_that_lost_it_goes_on_and_starts_afresh():
    with atoll.create_sandbox(backend="native", context="c" * 100_000) as box:
        assert box.execute(f"{FIND}\nos.close(find())\nlen(context)").value == 100_000
        assert box.execute("6 * 7").value == 42
        box.initialize("d" * 100_000)
        assert box.execute("context[0]").value == "d"


def test_a_forked_child_and_a_program_it_starts_have_none():
    code = f"""{FIND}
import subprocess, sys
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, repr(find()).encode())
    os._exit(0)
print(find() is not None, os.read(read, 20).decode(), end=" ")
print(subprocess.run([sys.executable, "-c", {FIND + "print(find())"!r}], capture_output=True, text=True, close_fds=False).stdout)
"""
    with atoll.create_sandbox(backend="native") as box:
        assert box.execute(code).stdout.split() == ["True", "None", "None"]


def test_the_guest_starts_without_the_module_that_receives():
    code = "import atoll\nwith atoll.create_sandbox(backend='native') as box: print(box.execute('import sys; \"_socket\" in sys.modules').value)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
