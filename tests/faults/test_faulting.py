"""The tool itself: a fault that is ended in the middle of a call leaves no other fault behind."""

from __future__ import annotations

import errno
import subprocess
import sys

from faulting import fault

ROUNDS = 60
RECEIVER = """
import socket
ours, theirs = socket.socketpair()
ours.setblocking(False)
print(flush=True)
while True:
    try:
        ours.recv(1)
    except BlockingIOError:
        pass
    except OSError as exc:
        print(exc.errno, flush=True)
"""


def test_a_tracer_that_is_ended_at_the_call_makes_it_fail_as_it_was_asked_to():
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", RECEIVER], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for _ in range(ROUNDS):
            with fault(process.pid, "receive", 1, "ENOMEM") as injected:
                assert injected.met()
                injected.end()
            assert int(process.stdout.readline()) == errno.ENOMEM
        process.kill()


def test_a_process_that_is_held_goes_on_when_its_fault_is_ended():
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", RECEIVER], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            with fault(process.pid, "receive", 1, "hold") as held:
                assert held.met()
                assert held.end()["hit"] == 1
            with fault(process.pid, "receive", 1, "ENOMEM") as injected:
                assert injected.met()
            assert int(process.stdout.readline()) == errno.ENOMEM
        finally:
            process.kill()
