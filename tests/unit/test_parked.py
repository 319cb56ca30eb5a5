"""Processes that wait for the next sandbox: one kind at a time, only those that live."""

from __future__ import annotations

import errno
import os

import pytest

from atoll.launch.parked import ParkedProcesses


class Fake:
    """A process; `started` lists all of them."""

    started: list[Fake]

    def __init__(self, kind: str) -> None:
        self.kind, self.ended, self.closed = kind, False, False
        self.started.append(self)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def parked():
    Fake.started = []
    return ParkedProcesses(Fake, most=2)


def take(parked: ParkedProcesses, kind: str) -> Fake:
    taken = parked.take(kind)
    parked.refill()
    return taken


def test_the_next_taker_gets_one_that_waits_and_another_is_started(parked):
    take(parked, "a")
    first, second = parked.waiting
    assert take(parked, "a") is first
    assert parked.waiting[0] is second
    assert len(Fake.started) == 4


def test_one_that_has_ended_is_closed_and_not_handed_out(parked):
    take(parked, "a")
    dead, alive = parked.waiting
    dead.ended = True
    assert take(parked, "a") is alive
    assert dead.closed


def test_another_kind_takes_the_place_when_it_is_asked_for_twice_in_a_row(parked):
    take(parked, "a")
    kept = list(parked.waiting)
    assert take(parked, "b").kind == "b"
    take(parked, "a")  # so the next "b" is the first again
    assert take(parked, "b").kind == "b"
    assert parked.kind == "a"
    take(parked, "b")
    assert {one.kind for one in parked.waiting} == {"b"}
    assert kept[1].closed


def test_what_cannot_be_started_for_later_is_no_fault(parked):
    taken = parked.take("a")

    def none(_kind: str) -> Fake:
        raise OSError(errno.EMFILE, "too many open files")

    parked._start = none
    parked.refill()
    assert (taken.closed, parked.count) == (False, 0)


def test_a_fork_of_the_host_has_none_of_its_parents(parked):
    take(parked, "a")
    pid = os.fork()
    if pid == 0:
        own = parked.take("a")
        os._exit(0 if own is Fake.started[-1] and parked.count == 0 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert parked.count == 2


def test_close_ends_those_that_wait(parked):
    take(parked, "a")
    waiting = list(parked.waiting)
    parked.close()
    assert all(one.closed for one in waiting)
    assert parked.count == 0
