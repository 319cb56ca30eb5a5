"""The filter's questions: answered one by one, whoever asks and however it ends."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import selectors
import signal
import time
from collections.abc import Callable

import pytest

from atoll.jail.supervisor import packets
from atoll.jail.supervisor.shared_jail import MAX_REFUSALS, Listener, Reply
from atoll.jail.walls import seccomp, syscalls
from atoll.jail.walls.notices import Notice
from atoll.jail.walls.seccomp import asked_number

ALLOWED = Reply(allowed=True)

FLAGS = 0x0400  # CLONE_FILES: unshare needs no right for it
libc = ctypes.CDLL(None, use_errno=True)


class Asker:
    """A process under the filter, which does what it is told and says what came of it."""

    def __init__(self, work: Callable[[], object]) -> None:
        ours, theirs = packets.pair()
        self.pid = os.fork()
        if self.pid == 0:
            _ask(theirs, work)
        theirs.close()
        (self.listener,) = packets.receive(ours).fds
        self.socket = ours

    def heard(self, selector: selectors.BaseSelector, seconds: float = 5) -> object:
        """Serve the listener until the process has said what it has to say."""
        selector.register(self.socket, selectors.EVENT_READ, None)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for key, _ in selector.select(0.1):
                if key.data is None:
                    selector.unregister(self.socket)
                    message = packets.receive(self.socket)
                    return message.fields["said"] if message else None
                key.data()
        raise AssertionError("no word")

    def close(self) -> None:
        self.socket.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _ask(sock, work) -> None:
    try:
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        fd = syscalls.install_filter(seccomp.jail_program(clones=True), listen=True)
        packets.send(sock, "filter", [fd])
        os.close(fd)
        packets.send(sock, "said", said=work())
        signal.pause()
    finally:
        os._exit(0)


def unshare() -> int:
    """The error of one call; 0 if it was let through."""
    ctypes.set_errno(0)
    return 0 if libc.unshare(FLAGS) == 0 else ctypes.get_errno()


@pytest.fixture
def selector():
    with selectors.DefaultSelector() as one:
        yield one


@pytest.fixture
def start(selector):
    """Starts an asker whose questions `judge` answers."""
    askers: list[Asker] = []

    def begin(work, decide) -> tuple[Asker, Listener]:
        asker = Asker(work)
        askers.append(asker)
        return asker, Listener(asker.listener, decide, selector)

    yield begin
    for asker in askers:
        asker.close()


def test_what_is_allowed_goes_on(start, selector):
    seen: list[Notice] = []
    asker, listener = start(unshare, lambda notice: seen.append(notice) or ALLOWED)
    assert asker.heard(selector) == 0
    (notice,) = seen
    assert (notice.pid, notice.call, notice.arguments[0]) == (
        asker.pid,
        asked_number("unshare"),
        FLAGS,
    )
    listener.close()


def test_what_is_refused_is_not_permitted(start, selector):
    asker, listener = start(unshare, lambda _: Reply())
    assert asker.heard(selector) == errno.EPERM
    assert listener.open
    listener.close()


def test_a_judge_that_finds_nobody_refuses(start, selector):
    def decide(_question: Notice) -> Reply:
        raise ProcessLookupError

    asker, listener = start(unshare, decide)
    assert asker.heard(selector) == errno.EPERM
    listener.close()


def test_after_too_many_refusals_the_kernel_refuses(start, selector):
    asker, listener = start(lambda: [unshare() for _ in range(MAX_REFUSALS + 5)], lambda _: Reply())
    codes = asker.heard(selector)
    assert codes == [errno.EPERM] * (MAX_REFUSALS + 1) + [errno.ENOSYS] * 4
    assert not listener.open


def test_one_that_is_killed_before_it_is_heard_closes_nothing(start, selector):
    def leave_a_question() -> int:
        child = os.fork()
        if child == 0:
            unshare()
            os._exit(0)
        time.sleep(0.3)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return unshare()

    asker, listener = start(leave_a_question, lambda _: ALLOWED)
    time.sleep(0.6)  # the first question comes and goes unheard
    assert asker.heard(selector) == 0
    assert listener.open
    listener.close()


def test_one_that_is_killed_while_it_is_judged_is_no_error(start, selector):
    def decide(notice: Notice) -> Reply:
        os.kill(notice.pid, signal.SIGKILL)
        time.sleep(0.1)
        return ALLOWED

    asker, _listener = start(unshare, decide)
    assert asker.heard(selector) is None


def test_a_question_that_a_signal_takes_back_is_asked_again_and_counts_once(start, selector):
    """A stop interrupts the wait for an answer; the kernel then makes the same call once more."""
    asked, accepted = [], []

    def decide(notice: Notice) -> Reply:
        asked.append(notice.ident)
        if len(asked) == 1:
            os.kill(notice.pid, signal.SIGSTOP)
            os.waitpid(notice.pid, os.WUNTRACED)
            os.kill(notice.pid, signal.SIGCONT)
        return Reply(allowed=True, on_accepted=lambda: accepted.append(notice.ident))

    asker, listener = start(unshare, decide)
    assert asker.heard(selector) == 0
    assert len(asked) == 2
    assert accepted == asked[1:]
    listener.close()


def test_when_all_are_gone_it_closes(start, selector):
    asker, listener = start(unshare, lambda _: ALLOWED)
    asker.heard(selector)
    os.kill(asker.pid, signal.SIGKILL)
    os.waitpid(asker.pid, 0)
    end = time.monotonic() + 30
    while listener.open and time.monotonic() < end:
        for key, _ in selector.select(0.1):
            key.data()
    assert not listener.open
    listener.close()  # once more is harmless


def test_a_listener_that_a_fault_has_stopped_is_closed_all_the_same():
    selector, (read, write) = selectors.DefaultSelector(), os.pipe()
    listener = Listener(read, lambda _: ALLOWED, selector)
    selector.unregister(read)
    listener.close()
    os.close(write)
    assert not listener.open
