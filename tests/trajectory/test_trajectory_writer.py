"""The writer: whole lines by many hands, private files, and a disk that is full."""

import asyncio
import json
import logging
import os
import resource
import stat
import subprocess
import sys
import threading
import time

import pytest
from runs import realistic

from atoll.agent.trajectory import CodeRan, Planned, TrajectoryWriter, read
from atoll.errors import ConfigError


def plan(number: int = 0) -> Planned:
    return Planned(way="loop", why=str(number))


def test_events_are_stamped_and_ids_are_unique(tmp_path):
    with TrajectoryWriter(tmp_path / "t.jsonl") as writer:
        events = [writer.emit(plan()) for _ in range(3)]
    assert [event.id for event in events] == ["e1", "e2", "e3"]
    assert {event.run for event in events} == {writer.run}
    assert all(event.at.endswith("+00:00") for event in events)
    assert 0 < events[0].elapsed_ms <= events[2].elapsed_ms
    assert read(tmp_path / "t.jsonl").events == tuple(events) == writer.events


def test_calls_have_ids_of_their_own():
    writer = TrajectoryWriter()
    assert [writer.new_call(), writer.new_call()] == ["c1", "c2"]


def test_without_a_path_events_are_in_memory_alone():
    writer = TrajectoryWriter()
    realistic(writer)
    assert len(writer.events) > 64


def test_a_file_is_for_its_owner_alone_even_if_it_was_not(tmp_path):
    path = tmp_path / "t.jsonl"
    path.touch(0o666)
    path.chmod(0o666)
    TrajectoryWriter(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_line_is_one_write(tmp_path, monkeypatch):
    writes, real = [], os.write
    writer = TrajectoryWriter(tmp_path / "t.jsonl")
    monkeypatch.setattr(os, "write", lambda fd, data: (writes.append(data), real(fd, data))[1])
    writer.emit(CodeRan(turn=1, code="a\n" * 30_000))
    writer.close()
    assert len(writes) == 1
    assert writes[0].count(b"\n") == 1


def test_many_threads_write_whole_lines(tmp_path):
    path = tmp_path / "t.jsonl"
    with TrajectoryWriter(path) as writer:
        hands = [
            threading.Thread(target=lambda: [writer.emit(plan(n)) for n in range(50)])
            for _ in range(8)
        ]
        for hand in hands:
            hand.start()
        for hand in hands:
            hand.join()
    found = read(path)
    assert len({event.id for event in found.events}) == 400
    assert (found.torn, found.skipped) == (False, 0)


async def test_many_tasks_write_whole_lines(tmp_path):
    path = tmp_path / "t.jsonl"

    async def work() -> None:
        for number in range(20):
            writer.emit(plan(number))
            await asyncio.sleep(0)

    with TrajectoryWriter(path) as writer:
        await asyncio.gather(
            *(work() for _ in range(10)),
            *(asyncio.to_thread(writer.emit, plan()) for _ in range(10)),
        )
    assert len(read(path).events) == 210


def test_two_writers_may_share_a_file(tmp_path):
    path = tmp_path / "t.jsonl"
    with TrajectoryWriter(path) as one, TrajectoryWriter(path) as two:
        for _ in range(5):
            one.emit(plan())
            two.emit(plan())
    assert [node.event.run for node in read(path).tree()] == [one.run, two.run]


def test_what_follows_a_torn_line_is_whole(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"event":"planned","way":"lo')
    with TrajectoryWriter(path) as writer:
        writer.emit(plan())
    found = read(path)
    assert (len(found.events), found.skipped, found.torn) == (1, 1, False)


@pytest.fixture
def small_disk():
    """No file may grow beyond 4,000 bytes: a write across that is short, the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def room(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))

    yield room
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_told_of_once_and_the_run_goes_on(tmp_path, small_disk, caplog):
    path, writer = tmp_path / "t.jsonl", TrajectoryWriter(tmp_path / "t.jsonl")
    small_disk(4000)
    with caplog.at_level(logging.WARNING, "atoll"):
        for number in range(100):
            writer.emit(plan(number))
    small_disk(1 << 20)
    writer.emit(plan(777))
    writer.close()
    told = [json.loads(record.message) for record in caplog.records]
    assert [one["event"] for one in told] == ["trajectory_not_written"]
    assert told[0]["path"] == str(path)
    found = read(path)
    assert len(writer.events) == 101
    assert 0 < writer.lost == 101 - len(found.events)
    assert found.events[-1].why == "777"  # on a line of its own after the torn one
    assert (found.skipped, found.torn) == (1, False)


def test_a_kill_tears_the_last_line_at_most(tmp_path):
    path, code = tmp_path / "t.jsonl", (
        "import sys; from atoll.agent.trajectory import CodeRan, TrajectoryWriter\n"
        "writer = TrajectoryWriter(sys.argv[1])\n"
        "while True: writer.emit(CodeRan(turn=1, code='x' * 20_000))"
    )  # fmt: skip
    with subprocess.Popen([sys.executable, "-c", code, str(path)]) as process:
        while not path.exists() or path.stat().st_size < 1_000_000:
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
    found = read(path)
    assert len(found.events) > 40
    assert found.skipped == 0


def test_memory_is_bounded_and_the_oldest_go_first(tmp_path):
    path = tmp_path / "t.jsonl"
    with TrajectoryWriter(path, memory_cap=50_000) as writer:
        for number in range(40):
            writer.emit(CodeRan(turn=number, code="x" * 5000))
    assert [event.turn for event in writer.events] == list(range(31, 40))
    assert len(read(path).events) == 40


def test_an_event_larger_than_the_memory_is_still_kept_until_the_next():
    writer = TrajectoryWriter(memory_cap=10)
    writer.emit(plan(1))
    writer.emit(plan(2))
    assert [event.why for event in writer.events] == ["2"]


def test_a_listener_hears_every_event_as_it_was_written():
    heard = []
    writer = TrajectoryWriter(on_event=heard.append)
    realistic(writer)
    assert tuple(heard) == writer.events


def test_a_listener_may_emit_itself():
    def echo(event):
        if event.why != "echo":
            writer.emit(Planned(way="direct", why="echo"))

    writer = TrajectoryWriter(on_event=echo)
    writer.emit(plan())
    assert [event.why for event in writer.events] == ["0", "echo"]


def test_a_listener_that_fails_is_told_of_once_and_not_called_again(caplog):
    calls = []

    def listener(event):
        calls.append(event)
        raise RuntimeError("deaf")

    writer = TrajectoryWriter(on_event=listener)
    with caplog.at_level(logging.WARNING, "atoll"):
        writer.emit(plan())
        writer.emit(plan())
    assert len(calls) == 1
    assert [record.message for record in caplog.records] == [
        '{"event": "trajectory_listener_failed", "reason": "RuntimeError: deaf"}'
    ]


def test_nothing_is_left_open(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    for number in range(5):
        writer = TrajectoryWriter(tmp_path / f"{number}.jsonl")
        writer.close()
        writer.close()
        assert writer.emit(plan()) in writer.events
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/null", tmp_path, tmp_path / "no" / "t.jsonl", tmp_path / "pipe"):
        with pytest.raises(ConfigError):
            TrajectoryWriter(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_device_is_refused_and_keeps_its_mode():
    before = os.stat("/dev/null").st_mode
    with pytest.raises(ConfigError, match="the record '/dev/null' is not a regular file"):
        TrajectoryWriter("/dev/null")
    assert os.stat("/dev/null").st_mode == before
