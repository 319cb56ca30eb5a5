"""`atoll memory`: what earlier runs left is listed, shown, exported and forgotten."""

from __future__ import annotations

import json

import pytest

from atoll.agent.memory.episodic import EpisodicMemory
from atoll.agent.memory.vectors import Words


@pytest.fixture
def file(tmp_path):
    memory = EpisodicMemory(tmp_path / "runs.db", embedder=Words())
    memory.add("count the late orders", "delegated", done="llm_query 9", outcome="answered", q=0.8)
    memory.add("who wrote\x1b[2J it", "search", q=0.4)
    return str(memory.path)


@pytest.mark.spec("R4.15")
def test_items_are_listed_and_shown(atoll, file):
    code, out, err = atoll("memory", "list", file)
    assert (code, err) == (0, "")
    assert out == (
        "     2  search     Q 0.40    1 runs  who wrote[2J it\n"
        "     1  delegated  Q 0.80    1 runs  count the late orders\n"
    )
    assert [row["id"] for row in json.loads(atoll("memory", "list", file, "--json")[1])] == [2, 1]
    shown = atoll("memory", "show", file, "1")[1]
    assert "intent         count the late orders\n" in shown
    assert "done           llm_query 9\n" in shown
    told = atoll("memory", "list", file, "--namespace", "other")[1]
    assert told == "nothing in namespace other; there are: default (2)\n"


def test_a_run_of_atoll_ask_leaves_an_item(atoll, tmp_path):
    file = str(tmp_path / "runs.db")
    assert atoll("ask", "--demo", "--quiet", "--memory-file", file)[0] == 0
    (item,) = json.loads(atoll("memory", "list", file, "--json")[1])
    assert (item["intent"], item["outcome"]) == ("Why was order 7312 delivered late?", "answered")
    assert item["tokens"] > 100


def test_items_are_exported_and_forgotten(atoll, file, tmp_path):
    rows = [json.loads(line) for line in atoll("memory", "export", file)[1].splitlines()]
    assert {row["strategy"] for row in rows} == {"search", "delegated"}
    target = tmp_path / "out.jsonl"
    assert atoll("memory", "export", file, "-o", str(target))[:2] == (0, f"{target}\n")
    assert len(target.read_text().splitlines()) == 2
    assert atoll("memory", "forget", file, "1")[:2] == (0, "1 forgotten\n")
    assert atoll("memory", "forget", file, "--all")[:2] == (0, "1 forgotten\n")
    assert atoll("memory", "export", file)[1] == ""


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["show", "FILE", "99"], "there is no item 99 in namespace default"),
        (["forget", "FILE", "99"], "there is no item 99"),
        (["forget", "FILE"], "name the ids to forget, or --all"),
        (["forget", "FILE", "1", "--all"], "name the ids to forget, or --all"),
        (["list", "/no/such.db"], "there is no memory '/no/such.db'"),
        (["list", "FILE", "--namespace", "a b"], "a namespace has"),
        (["list", __file__], "is not a SQLite file"),
    ],
)
def test_mistakes_are_one_line(atoll, file, argv, said):
    code, out, err = atoll("memory", *(file if one == "FILE" else one for one in argv))
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
