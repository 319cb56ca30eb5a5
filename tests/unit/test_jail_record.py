"""What the supervisor keeps of one sandbox, with the order of events forced."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
from collections.abc import Iterator

import pytest

from atoll.jail.supervisor import packets
from atoll.jail.supervisor.jail_record import JailRecord


class _Record(JailRecord):
    """A sandbox without processes; `host` is the host's end of its lease."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self.host, lease = packets.pair()
        super().__init__(None, lease, None, selector)

    def guest_pid(self) -> int:
        return 0

    def roots(self) -> list[int]:
        return []

    def _signal_guest(self) -> None: ...

    def _signal_all(self) -> None: ...

    def _release(self) -> None:
        self.host.close()


@pytest.fixture
def record() -> Iterator[_Record]:
    with selectors.DefaultSelector() as selector:
        one = _Record(selector)
        yield one
        one.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    packets.close_all(ends)


def test_a_guest_that_asks_early_gets_what_was_sent_last(record, pipe):
    """A cancelled fork() leaves a descriptor behind; the next fork() must not be given it."""
    stale, fresh = os.open("/dev/null", os.O_RDONLY), pipe[0]
    packets.send(record.host, "give", [stale])
    record._on_command()
    packets.send(record.host, "give", [fresh])  # the supervisor has not read it yet
    assert os.path.sameopenfile(record.next_passed_fd().passed_fd, fresh)
    os.close(stale)


def test_a_descriptor_is_gone_only_when_the_guest_has_it(record, pipe):
    packets.send(record.host, "give", pipe)
    for _ in range(2):  # the first answer is not accepted
        reply = record.next_passed_fd()
        assert os.path.sameopenfile(reply.passed_fd, pipe[0])
    reply.on_accepted()
    assert record.next_passed_fd().passed_fd != reply.passed_fd


def test_a_guest_that_asks_when_the_host_is_gone_is_refused(record):
    record.host.close()
    assert record.next_passed_fd().passed_fd is None


def test_pid_1_watches_descriptors_of_any_number():
    """A supervisor of hundreds of sandboxes has descriptors that select() cannot take."""
    code = """if True:
        import fcntl, os, resource, socket
        from atoll.jail.supervisor.spec import JailSpec
        from atoll.jail.walls import init
        from atoll.policy import ExecutionPolicy
        from atoll.jail.supervisor import packets
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
        high = lambda fd: fcntl.fcntl(fd, fcntl.F_DUPFD, 2000)
        ours, theirs = socket.socketpair()
        ours.send(b"1")
        assert packets.is_readable(high(theirs.fileno()))
        lifeline, _held = os.pipe()
        guest = [os.open("/dev/null", os.O_RDWR) for _ in range(4)]
        spec = JailSpec(jailed=True, argv=("/bin/true",), env={}, binds=(), workspace=None, limits=None)
        init.run(spec, guest, os.dup(theirs.fileno()), high(lifeline))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
