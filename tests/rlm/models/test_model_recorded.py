"""Record and replay: the same request, the same reply; and what is said of another."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import stat

import pytest

from atoll.agent.rlm.models import recorded
from atoll.agent.rlm.models.recorded import Recorder, Replay
from atoll.agent.rlm.models.scripted import ScriptedModel
from atoll.agent.rlm.models.types import Message
from atoll.errors import ModelRecordError, ModelRefusedError

ASK = [Message("system", "Be brief."), Message("user", "How many rivers are there in the text?")]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


async def record(path, replies, asks=None, **options):
    model = Recorder(ScriptedModel(replies, usd_per_call=0.5), path)
    done = [await model.complete(ask, **options) for ask in asks or [ASK] * len(replies)]
    await model.close()
    return done


async def test_a_replay_is_the_recorded_run(path):
    done = await record(path, ["one", "two\u2028\ud800"], max_tokens=5, stop=["x"])
    replay = Replay(path)
    assert replay.name == "scripted/model"
    assert [await replay.complete(ASK, max_tokens=5, stop=["x"]) for _ in done] == done
    assert replay.left == 0


async def test_a_replay_can_be_streamed(path):
    await record(path, ["one"])
    pieces: list[str] = []
    await Replay(path).complete(ASK, on_text=pieces.append)
    assert pieces == ["one"]


async def test_an_error_is_replayed_with_its_facts(path):
    error = ModelRefusedError("too long", status=400, code="context_length_exceeded")
    with pytest.raises(ModelRefusedError):
        await record(path, [error])
    with pytest.raises(ModelRefusedError, match="too long") as caught:
        await Replay(path).complete(ASK)
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")


async def test_a_request_made_more_often_than_recorded_says_so(path):
    await record(path, ["one"])
    replay = Replay(path)
    await replay.complete(ASK)
    with pytest.raises(ModelRecordError, match="has this request 1 times: it was made once more"):
        await replay.complete(ASK)


@pytest.mark.parametrize(
    ("ask", "options", "what"),
    [
        ([ASK[0], Message("user", "How many lakes are there?")], {}, r"message 1 \(user\), character 9: recorded 'How many rivers.*asked 'How many lakes"),
        ([Message("user", "Be brief."), ASK[1]], {}, "message 0: recorded from 'system', asked from 'user'"),
        ([*ASK, Message("user", "And?")], {}, "the number of messages: recorded 2, asked 3; the first 2 are the same"),
        (ASK, {"max_tokens": 7}, "the options: recorded .*max_tokens=None.* asked .*max_tokens=7"),
    ],
)  # fmt: skip
async def test_a_request_that_is_not_recorded_shows_the_nearest_difference(
    path, ask, options, what
):
    await record(path, ["one", "two"], [[Message("user", "Something else")], ASK])
    with pytest.raises(ModelRecordError, match=what):
        await Replay(path).complete(ask, **options)


async def test_two_models_share_a_record(path):
    root, sub = (Recorder(ScriptedModel([name], name=name), path) for name in ("a/root", "a/sub"))
    await asyncio.gather(root.complete(ASK), sub.complete(ASK))
    await root.close()
    await sub.close()
    for name in ("a/root", "a/sub"):
        replay = Replay(path, name=name)
        assert (await replay.complete(ASK)).text == name
        assert replay.left == 0


async def test_calls_at_the_same_time_are_all_kept_and_all_replayed(path):
    asks = [[Message("user", str(number % 5))] for number in range(40)]
    model = Recorder(ScriptedModel([lambda messages: messages[0].content] * 40, delay=0.001), path)
    done = await asyncio.gather(*map(model.complete, asks))
    await model.close()
    replay = Replay(path)
    assert [one.text for one in await asyncio.gather(*map(replay.complete, asks))] == [
        one.text for one in done
    ]
    assert replay.left == 0


async def test_a_record_is_its_owners_alone(path):
    path.touch(0o644)
    await record(path, ["one"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_record_is_not_written_through_a_link(path, tmp_path):
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ModelRecordError, match="no record can be kept"):
        Recorder(ScriptedModel([]), path)


async def test_a_full_disk_leaves_whole_lines(path, monkeypatch):
    model = Recorder(ScriptedModel(["one", "two", "three"]), path)
    await model.complete(ASK)
    write = os.write

    def full(fd, data):
        monkeypatch.setattr(recorded.os, "write", fuller)
        return write(fd, data[:20])

    def fuller(fd, data):
        monkeypatch.undo()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(recorded.os, "write", full)
    with pytest.raises(ModelRecordError, match="No space left on device"):
        await model.complete(ASK)
    await model.complete(ASK)
    await model.close()
    replay = Replay(path)
    assert [(await replay.complete(ASK)).text for _ in range(2)] == ["one", "three"]


async def test_a_recorder_that_is_forgotten_leaves_no_descriptor(path):
    before = len(os.listdir("/proc/self/fd"))
    Recorder(ScriptedModel([]), path)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_a_closed_record_says_so(path):
    model = Recorder(ScriptedModel(["one"]), path)
    await model.close()
    with pytest.raises(ModelRecordError, match="has been closed"):
        await model.complete(ASK)


@pytest.mark.parametrize(
    "change",
    [
        (b'"version": 1', b'"version": 9'),
        (b"Be brief.", b"Be long."),
        (b'{"version"', b"{"),
        (b'"reply"', b'"rely"'),
    ],
)
async def test_a_line_that_was_changed_is_named(path, change):
    await record(path, ["one", "two"])
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second.replace(*change))
    with pytest.raises(ModelRecordError, match="line 2 is not an exchange"):
        Replay(path)


async def test_a_record_that_is_not_there_is_named(path):
    with pytest.raises(ModelRecordError, match="No such file"):
        Replay(path)


async def test_an_empty_record_says_so(path):
    path.touch()
    with pytest.raises(ModelRecordError, match="has no exchange in it"):
        await Replay(path).complete(ASK)
