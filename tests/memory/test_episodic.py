"""The file of an episodic memory: phases, namespaces, limits, many processes, bad files."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys

import pytest

import atoll
from atoll.agent.memory.episodic import STRATEGIES, EpisodicMemory, Item, fused
from atoll.agent.memory.vectors import Intents, Words, pack, similarities, unit

WORKER = """
import sys
from atoll.agent.memory.episodic import EpisodicMemory
from atoll.agent.memory.vectors import Words
memory = EpisodicMemory(sys.argv[1], embedder=Words(), max_items=1000, busy_seconds=60)
shared = memory.add("the question that all ask", "scan", q=0.5)
for number in range(20):
    memory.add(f"w{sys.argv[2]}x{number} q{sys.argv[2]}y{number}", "search")
    memory.reward([shared], 1.0)
print(shared)
"""


def memory_of(tmp_path, **options):
    return EpisodicMemory(tmp_path / "memory.db", **{"embedder": Words(), **options})


def item(number, q):
    return Item(
        id=number, intent="", strategy="scan", done="", outcome="", q=q, tokens=0,
        context_tokens=0, runs=1, created=0.0, used=0.0,
    )  # fmt: skip


def test_what_is_added_is_found_by_similarity_best_first(tmp_path):
    memory = memory_of(tmp_path)
    memory.add("count the late orders", "delegated", done="llm_query 9", outcome="answered", q=0.8)
    memory.add("count the late invoices", "search", tokens=7, context_tokens=70)
    memory.add("who wrote it", "scan")
    found = memory.similar("count the late orders")
    assert [one.intent for _, one in found] == ["count the late orders", "count the late invoices"]
    assert found[0][0] == pytest.approx(1.0, abs=1e-5)
    assert 0.5 <= found[1][0] < 1
    assert (found[0][1].q, found[0][1].done, found[1][1].tokens) == (0.8, "llm_query 9", 7)
    assert [
        one.strategy for one in memory.retrieve("count the late orders", ("search",)).items
    ] == ["search"]


def test_phase_b_weighs_similarity_and_q_alike():
    candidates = [
        (0.9, item(1, 0.1)),
        (0.6, item(2, 0.9)),
        (0.8, item(3, 0.8)),
        (0.5, item(4, 0.2)),
    ]
    assert [one.id for one in fused(candidates)] == [3, 2, 1, 4]
    assert [one.id for one in fused([(0.7, item(1, 0.5)), (0.7, item(2, 0.6))])] == [2, 1]
    assert fused([]) == []


def test_a_reward_moves_q_by_three_tenths(tmp_path):
    memory = memory_of(tmp_path)
    one = memory.add("a question", "scan", q=0.5)
    memory.reward([one, one, 999], 1.0)
    assert memory.get(one).q == pytest.approx(0.65)
    memory.reward([one], 7)
    assert memory.get(one).q == pytest.approx(0.65 + 0.3 * 0.35)


def test_the_same_question_and_strategy_is_one_item(tmp_path):
    memory = memory_of(tmp_path)
    first = memory.add("count the late orders", "scan", q=0.5, tokens=100)
    assert memory.add("count the late orders", "scan", q=1.0, tokens=200) == first
    assert memory.add("count the late orders", "search") != first
    again = memory.get(first)
    assert (again.runs, again.tokens) == (2, 150)
    assert again.q == pytest.approx(0.65)


def test_namespaces_see_nothing_of_each_other(tmp_path):
    ours, theirs = memory_of(tmp_path, namespace="ours"), memory_of(tmp_path, namespace="theirs")
    one = ours.add("a question", "scan", q=0.5)
    assert theirs.similar("a question") == []
    assert theirs.get(one) is None
    theirs.reward([one], 1.0)
    theirs.adjust([one], 0.2)
    assert theirs.forget([one]) == theirs.forget() == 0
    assert ours.get(one).q == 0.5
    assert theirs.add("a question", "scan") != one
    assert ours.namespaces() == {"ours": 1, "theirs": 1}


def test_the_items_used_last_are_kept(tmp_path):
    memory = memory_of(tmp_path, max_items=3)
    ids = [memory.add(f"w{n} x{n} y{n}", "scan") for n in range(3)]
    memory.reward([ids[0]], 1.0)
    new = memory.add("another thing entirely", "scan")
    assert {one.id for one in memory.items()} == {ids[0], ids[2], new}


def test_texts_are_cut_and_lose_control_characters(tmp_path):
    memory = memory_of(tmp_path)
    one = memory.get(memory.add("a\x00b\x1b[1m\u202e\nc " + "x" * 9999, "scan", done="d" * 9999))
    assert one.intent.startswith("ab[1m c xxx")
    assert (len(one.intent), len(one.done)) == (500, 300)


def test_export_and_forget(tmp_path):
    memory = memory_of(tmp_path)
    ids = [memory.add(f"secret w{n} x{n} y{n}", "scan") for n in range(3)]
    rows = [json.loads(json.dumps(row)) for row in memory.export()]
    assert {row["id"] for row in rows} == set(ids)
    assert rows[0]["namespace"] == "default"
    assert memory.forget(ids[:1]) == 1
    assert memory.forget() == 2
    assert memory.items() == []
    assert b"secret" not in (tmp_path / "memory.db").read_bytes()


def test_the_file_is_for_its_owner_alone(tmp_path):
    memory_of(tmp_path).add("a question", "scan")
    assert (tmp_path / "memory.db").stat().st_mode & 0o777 == 0o600


def test_a_folder_that_does_not_exist_is_not_made(tmp_path):
    for make in (EpisodicMemory, lambda path: atoll.EnvironmentConfig(memory=path)):
        with pytest.raises(atoll.ConfigError, match=r"new does not exist: create it first"):
            make(tmp_path / "new" / "memory.db")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"namespace": "no blanks"}, "a namespace has"),
        ({"namespace": ""}, "a namespace has"),
        ({"epsilon": 1.5}, "epsilon must be"),
        ({"max_items": 0}, "max_items"),
    ],
)
def test_wrong_options_are_told(tmp_path, options, said):
    with pytest.raises(atoll.ConfigError, match=said):
        memory_of(tmp_path, **options)
    with pytest.raises(atoll.ConfigError, match="no strategy 'guess'"):
        memory_of(tmp_path).add("x", "guess")


def foreign(path):
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE bookmarks (x)")
    db.close()


def newer(path):
    EpisodicMemory(path, embedder=Words()).items()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()


def damaged(path):
    memory = EpisodicMemory(path, embedder=Words())
    for number in range(60):
        memory.add(f"w{number} x{number} y{number}", "scan")
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.write_bytes(os.urandom(9000)), "not a SQLite file: name another file"),
        (foreign, "another program's database"),
        (newer, "of a newer Atoll"),
        (damaged, "damaged: name another file"),
        (lambda path: path.mkdir(), "not a regular file"),
        (os.mkfifo, "not a regular file"),
    ],
)
def test_a_file_that_is_no_memory_is_refused_and_left_alone(tmp_path, spoil, said):
    path = tmp_path / "memory.db"
    spoil(path)
    before = path.read_bytes() if path.is_file() else b""
    memory = memory_of(tmp_path)
    with pytest.raises(atoll.MemoryStoreError, match=said):
        memory.add("a question", "scan")
    if spoil is foreign:
        assert path.read_bytes() == before


def test_a_locked_file_is_told_after_the_wait(tmp_path):
    memory = memory_of(tmp_path, busy_seconds=0.05)
    memory.items()
    other = sqlite3.connect(tmp_path / "memory.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(atoll.MemoryStoreError, match="another process has kept it locked"):
        memory.add("a question", "scan")
    assert memory.items() == []
    other.close()
    assert memory.add("a question", "scan")


def test_a_file_that_can_grow_no_more_is_told(tmp_path):
    memory = memory_of(tmp_path, max_bytes=16 * 4096)
    with pytest.raises(atoll.MemoryStoreError, match="no room is left"):
        for number in range(200):
            memory.add(f"w{number} x{number} y{number}", "scan")
    assert len(memory.items()) > 5


def test_values_that_somebody_edited_are_taken_with_care(tmp_path):
    memory = memory_of(tmp_path)
    memory.add("a question", "scan")
    with sqlite3.connect(tmp_path / "memory.db") as db:
        db.execute("UPDATE items SET q = 'much', tokens = 'few', strategy = 'rm -rf', runs = -3")
    db.close()
    (found,) = memory.items()
    assert (found.q, found.tokens, found.strategy, found.runs) == (0.0, 0, "mixed", 0)
    assert found.strategy in STRATEGIES


@pytest.mark.long
def test_many_processes_write_at_once_and_nothing_is_lost(tmp_path):
    path = str(tmp_path / "memory.db")
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, path, str(number)], stdout=subprocess.PIPE, text=True
        )
        for number in range(4)
    ]
    ids = {process.communicate(timeout=100)[0].strip() for process in started}
    assert all(process.returncode == 0 for process in started)
    assert len(ids) == 1
    memory = memory_of(tmp_path)
    assert len(memory.items()) == 4 * 20 + 1
    shared = memory.get(int(ids.pop()))
    assert shared.runs == 4
    assert shared.q > 0.999


def test_vectors_are_units_and_fit_with_and_without_numpy(monkeypatch):
    words = Words()
    first, second = words.embed("count late orders"), pack(words.embed("count late invoices"))
    with_numpy = similarities(first, [second])
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert similarities(first, [second]) == pytest.approx(with_numpy, abs=1e-5)
    assert sum(x * x for x in first) == pytest.approx(1.0, abs=1e-5)
    assert set(unit([0.0, 0.0])) == {0.0}
    with pytest.raises(ValueError, match="another length"):
        similarities(first, [b"1234"])


def test_names_and_numbers_do_not_change_the_intent():
    intents = Intents(None)
    one = intents.embed("Which of the 12 rooms did Ada Lovelace rent?")
    other = pack(intents.embed("Which of the 700 rooms did Karl rent?"))
    assert similarities(one, [other]) == pytest.approx([1.0], abs=1e-5)
