"""An environment with a memory: what it looked up, and what it recorded of how it explored."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest

import atoll
from atoll.agent.memory.episodic import APPLICATION_ID, EpisodicMemory

TEXT = "".join(f"entry {n}: value {n * n}\n" for n in range(400))
TASK = "What is the value of entry 7?"
pytestmark = [pytest.mark.spec("R4.15"), pytest.mark.spec("R4.29")]


@pytest.fixture
def memory(tmp_path):
    return EpisodicMemory(tmp_path / "memory.db", epsilon=0.0, seed=1)


def opened(memory, **options):
    return atoll.REPLEnvironment(backend="native", context=TEXT, memory=memory, **options)


def test_an_answer_is_recorded_with_strategy_efficiency_and_q(memory):
    with opened(memory, task=TASK) as env:
        env.execute("grep('entry 7:')")
        env.execute("FINAL('49', quotes=['entry 7: value 49'])")
        seen = env.exploration
        (item,) = memory.items()
    assert (item.intent, item.strategy, item.done) == (TASK, "search", "grep 1")
    assert item.outcome == "answered"
    assert item.efficiency == pytest.approx(seen.token_efficiency)
    assert item.efficiency > 0
    assert item.tokens == seen.exploration_tokens + seen.result_tokens
    assert item.context_tokens > 1000
    assert item.q > 0.9, "its quote is in the context, and it took few tokens"
    assert len(memory.items()) == 1, "closing records nothing more"


def test_a_reward_changes_q(memory):
    with opened(memory, task=TASK) as env:
        env.execute("grep('entry 7:'); FINAL('48')")
        before = memory.items()[0].q
        assert env.reward(0.0)
        assert memory.items()[0].q < before / 2
        with pytest.raises(atoll.ConfigError, match="from 0 to 1"):
            env.reward(7)


def test_similar_explorations_are_found_for_the_next_task(memory):
    for _ in range(30):
        memory.add(TASK, "search", q=0.9, done="grep 1")
    for other in ("scan", "delegated"):
        memory.add(TASK, other, q=0.1)
    with opened(memory, task="What is the value of entry 9?") as env:
        assert env.advice.strategy == "search"
        assert "grep for words of the question" in env.advice.prompt()
        found = env.execute("recall('What is the value of entry 9?')[0]['call']").result.value
        assert found == TASK
        env.execute("grep('entry 9:'); FINAL('81')")
    assert {one.strategy for one in memory.items()} == {"search", "scan", "delegated"}


def test_a_task_without_an_answer_is_recorded_when_it_ends(memory):
    with opened(memory, task=TASK) as env:
        env.execute("peek(100)")
        env.next_question("And entry 8?")
        (item,) = memory.items()
        assert (item.strategy, item.outcome, item.q) == ("scan", "unanswered", 0.0)
        env.execute("grep('entry 8:')")
        env.reset()
    assert sorted((one.intent, one.outcome) for one in memory.items()) == [
        ("And entry 8?", "unanswered"),
        (TASK, "unanswered"),
    ]


def test_without_a_task_it_is_remembered_by_what_was_looked_for(memory):
    with opened(memory) as env:
        env.execute("grep('entry 7:'); grep('value 49'); FINAL('49')")
    assert memory.items()[0].intent == "entry 7:; value 49"


def test_an_environment_that_did_not_look_leaves_nothing(memory):
    with opened(memory, task=TASK) as env:
        env.execute("FINAL('49')")
    assert memory.items() == []


def test_a_memory_that_fails_does_not_end_the_session(tmp_path, memory):
    (tmp_path / "memory.db").write_text("not a database")
    with opened(memory, task=TASK) as env:
        assert env.advice.strategy is None
        assert env.execute("grep('entry 7:'); FINAL('49')").final.text == "49"
        assert env.reward(1.0) is False


def test_a_memory_of_format_1_is_upgraded(tmp_path):
    path = tmp_path / "old.db"
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute(
            "CREATE TABLE items (id INTEGER PRIMARY KEY, namespace TEXT NOT NULL, intent TEXT NOT "
            "NULL, embedder TEXT NOT NULL, vector BLOB NOT NULL, strategy TEXT NOT NULL, done TEXT "
            "NOT NULL, outcome TEXT NOT NULL, q REAL NOT NULL, tokens INTEGER NOT NULL, "
            "context_tokens INTEGER NOT NULL, runs INTEGER NOT NULL, created REAL NOT NULL, "
            "used REAL NOT NULL)"
        )
        db.execute(
            "INSERT INTO items VALUES (1, 'default', 'old', 'x', x'00', 'scan', '', 'answered', "
            "0.5, 9, 9, 1, 1.0, 1.0)"
        )
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute("PRAGMA user_version = 1")
    db.close()
    memory = EpisodicMemory(path)
    assert [(one.intent, one.efficiency) for one in memory.items()] == [("old", 0.0)]
    memory.add("new", "scan", efficiency=0.25)
    assert {one.efficiency for one in memory.items()} == {0.0, 0.25}


@pytest.mark.spec("R4.24")
def test_reset_deletes_spilled_output_and_the_workers_notes(tmp_path):
    prompts = []

    def worker(prompt):
        prompts.append(prompt)
        return f"notes {len(prompts)}"

    options = {"backend": "native", "spill_dir": tmp_path, "session_id": "s", "worker": worker}
    with atoll.REPLEnvironment(**options) as env:
        env.execute("print('first ' * 5000)")
        assert [one.name for one in (tmp_path / "s").iterdir()] == ["turn_1.txt"]
        env.reset()
        assert list((tmp_path / "s").iterdir()) == []
        assert env.get_state()["spilled"] == []
        turn = env.execute("print('second ' * 5000)")
        assert turn.spilled == tmp_path / "s" / "turn_1.txt"
        assert "notes 2" in turn.observation
    assert "notes 1" not in prompts[1], "the notes before the reset are forgotten"
