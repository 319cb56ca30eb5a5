"""The reader and the tree: torn, foreign and forged files, and who belongs to whom at what cost."""

import json
import os

import pytest
from runs import realistic

from atoll.agent.trajectory import (
    CodeRan,
    ModelAnswered,
    ModelAsked,
    Planned,
    RunStarted,
    SubcallEnded,
    SubcallStarted,
    Trajectory,
    TrajectoryWriter,
    UnknownEvent,
    Usage,
    read,
    to_dict,
)
from atoll.agent.trajectory.reader import LINE_CAP
from atoll.agent.trajectory.tree import DEPTH_CAP
from atoll.agent.trajectory.words import at_once
from atoll.errors import ConfigError

LINE = json.dumps(to_dict(Planned(way="loop"))).encode() + b"\n"


@pytest.fixture
def file(tmp_path):
    def write(data: bytes):
        path = tmp_path / "t.jsonl"
        path.write_bytes(data)
        return path

    return write


@pytest.fixture(scope="module")
def run():
    writer = TrajectoryWriter()
    realistic(writer)
    (root,) = Trajectory(events=writer.events).tree()
    return root


@pytest.mark.parametrize("cut", [1, 5, len(LINE) - 2])
def test_a_torn_last_line_is_told_of_and_the_rest_is_read(file, cut):
    found = read(file(LINE * 3 + LINE[:cut]))
    assert (len(found.events), found.torn, found.skipped) == (3, True, 0)


def test_a_last_line_that_only_lacks_its_end_is_read(file):
    found = read(file(LINE + LINE[:-1]))
    assert (len(found.events), found.torn) == (2, True)


def test_lines_that_are_no_objects_are_skipped_and_counted(file):
    found = read(file(LINE + b'junk\n[1]\n7\n\xff\xfe\n\n"x"\n' + LINE))
    assert (len(found.events), found.skipped, found.torn) == (2, 5, False)


@pytest.mark.parametrize("bad", [b"[" * 100_000, b'{"a":' * 50_000, b"9" * 9000])
def test_json_that_is_made_to_break_a_parser_is_skipped(file, bad):
    found = read(file(bad + b"\n" + LINE))
    assert (len(found.events), found.skipped) == (1, 1)


def test_a_deep_value_in_an_event_is_cut(file):
    found = read(file(b'{"event": "x", "deep": ' + b"[" * 300 + b"]" * 300 + b"}\n"))
    assert "[cut: too deep]" in str(found.events[0].extra)


def test_a_line_over_the_cap_is_skipped_and_the_next_is_read(file):
    long = b'{"event":"planned","way":"' + b"x" * 500 + b'"}\n'
    found = read(file(LINE + long + LINE), line_cap=300)
    assert (len(found.events), found.skipped, found.torn) == (2, 1, False)


def test_the_longest_event_that_is_written_can_be_read(tmp_path):
    path = tmp_path / "t.jsonl"
    with TrajectoryWriter(path) as writer:
        writer.emit(CodeRan(turn=1, code="\U0001f600" * 100_000, observation="\0" * 100_000))
    assert path.stat().st_size < LINE_CAP
    assert isinstance(read(path).events[0], CodeRan)


def test_no_more_events_are_read_than_allowed(file):
    found = read(file(LINE * 10), events_cap=4)
    assert (len(found.events), found.cut) == (4, True)
    assert not read(file(LINE * 4), events_cap=4).cut


def test_no_more_bytes_are_read_than_allowed(file):
    found = read(file(LINE * 10), bytes_cap=4 * len(LINE))
    assert (len(found.events), found.cut) == (4, True)


def test_what_is_no_file_is_an_error_not_a_wait(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    before = len(os.listdir("/proc/self/fd"))
    for path in (tmp_path / "pipe", tmp_path, "/dev/zero"):
        with pytest.raises(ConfigError, match="is not a regular file"):
            read(path)
    with pytest.raises(ConfigError, match="cannot read the record"):
        read(tmp_path / "missing")
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_empty_file_is_an_empty_trajectory(file):
    assert read(file(b"")) == Trajectory(events=())
    assert read(file(b"")).tree() == ()


def turns(node):
    return [one for one in node.children if isinstance(one.event, CodeRan)]


def test_sub_calls_belong_to_the_turn_whose_code_made_them(run):
    assert [len(turn.children) for turn in turns(run)] == [0, 32, 1, 0]
    deeper = turns(run)[2].children[0]
    assert deeper.event.kind == "rlm_query"
    assert [len(turn.children) for turn in turns(deeper)] == [2]


def test_a_call_and_its_end_are_one_node(run):
    batch = turns(run)[1].children
    assert all(
        isinstance(one.end, SubcallEnded) and one.end.call == one.event.call for one in batch
    )
    assert at_once(batch) == 8


def test_totals_are_of_the_whole_subtree(run):
    batch = turns(run)[1]
    assert batch.totals.calls == 31  # one failed before it cost anything
    assert batch.totals.usd == pytest.approx(sum(one.end.usd for one in batch.children))
    assert batch.totals.usage.input == sum(one.end.usage.input for one in batch.children)
    assert (run.totals.usd, run.totals.calls, run.totals.usage.input) == (0.2513, 38, 281_000)


def test_an_identical_call_that_is_asked_once_costs_once(run):
    inner = turns(turns(run)[2].children[0])[0]
    first, same = inner.children
    assert same.event.shared_with == first.event.call
    assert (first.totals.usd, same.totals.usd, inner.totals.calls) == (0.0002, 0.0, 1)


def test_a_sub_calls_own_sum_is_not_added_to_that_of_its_parts(run):
    deeper = turns(run)[2].children[0]
    assert deeper.totals.usd == 0.031
    assert deeper.totals.calls == 2


def test_a_price_that_is_not_known_is_counted():
    events = (
        ModelAsked(call="c1", model="m"),
        ModelAnswered(call="c1", text="a", usage=Usage(input=5)),
        ModelAsked(call="c2", model="m"),
        ModelAnswered(call="c2", text="b", usd=0.5),
    )
    (root,) = Trajectory(events=events).tree()
    assert (root.totals.unpriced, root.totals.usd, root.totals.calls) == (1, 0.5, 2)


def test_calls_that_never_ended_are_there_without_an_end():
    events = (
        RunStarted(question="?", model="m"),
        SubcallStarted(call="c1", kind="llm_query", prompt="?"),
    )
    (root,) = Trajectory(events=events).tree()
    assert root.end is None
    assert [(one.event, one.end) for one in root.children] == [(events[1], None)]


def test_a_model_that_is_asked_under_its_sub_calls_id_belongs_to_it():
    events = (
        RunStarted(question="?", model="m"),
        SubcallStarted(call="c1", kind="llm_query", prompt="?"),
        ModelAsked(call="c1", model="m"),
        ModelAnswered(call="c1", text="a", usage=Usage(input=5), usd=0.1),
        SubcallEnded(call="c1", answer="a", usage=Usage(input=5), usd=0.1),
    )
    (root,) = Trajectory(events=events).tree()
    assert (root.totals.calls, root.totals.usd) == (1, 0.1)
    assert len(root.children) == len(root.children[0].children) == 1


def count(node):
    return 1 + sum(map(count, node.children))


def test_forged_parents_make_no_cycle_and_lose_no_event():
    events = tuple(
        SubcallStarted(call=f"c{n}", parent=f"c{(n + 1) % 50}", kind="rlm_query", prompt="?")
        for n in range(50)
    )
    (root,) = Trajectory(events=(RunStarted(question="?", model="m"), *events)).tree()
    assert count(root) == 51


def test_a_forged_depth_is_bounded_and_loses_no_event():
    def depth(node):
        return 1 + max(map(depth, node.children), default=0)

    events = tuple(
        SubcallStarted(call=f"c{n}", parent=f"c{n - 1}", kind="rlm_query", prompt="?")
        for n in range(1000)
    )
    (root,) = Trajectory(events=(RunStarted(question="?", model="m"), *events)).tree()
    assert count(root) == 1001
    assert depth(root) <= DEPTH_CAP + 1


def test_ends_without_a_beginning_and_ends_twice_are_kept():
    end = SubcallEnded(call="c1", answer="a")
    events = (
        SubcallStarted(call="c1", kind="llm_query", prompt="?"),
        end,
        end,
        SubcallEnded(call="c2"),
    )
    (root,) = Trajectory(events=events).tree()
    assert count(root) == 1 + 3


def test_unknown_events_have_their_place(file):
    events = read(file(b'{"event":"new","run":"r","parent":"c1"}\n')).events
    (root,) = Trajectory(events=events).tree()
    assert isinstance(root.children[0].event, UnknownEvent)
