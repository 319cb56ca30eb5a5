"""Public benchmarks: a few rows written by hand in each format are read and scored as published."""

from __future__ import annotations

import json

import pytest

from evals.__main__ import main
from evals.arms import ARMS, Said
from evals.benchmarks import CODE, load

OOLONG = [
    {
        "id": 1,
        "dataset": "trec_coarse",
        "context_window_text": "Date: x || Instance: Who was it?",
        "question": "How many are about a human?",
        "answer": "[10]",
        "answer_type": "ANSWER_TYPE.NUMERIC",
    },
    {
        "id": 2,
        "context_window_text": "text",
        "question": "Which label is most common?",
        "answer": "['human being']",
        "answer_type": "ANSWER_TYPE.LABEL",
    },
]
RULER = [
    {
        "index": 7,
        "input": "A number is hidden.\nThe number for x is 4411.\nWhat is the number for x? It is",
        "outputs": ["4411", "5522"],
        "length": 40,
    }
]
LONGBENCH = [
    {"_id": "a", "domain": "Other", "question": "?", "context": "", "answer": "A"},
    {
        "_id": "b",
        "domain": CODE,
        "question": "Which one?",
        "context": "def f(): ...",
        **{f"choice_{letter}": letter.lower() * 3 for letter in "ABCD"},
        "answer": "C",
    },
]
BROWSECOMP = [
    {
        "query_id": "1",
        "query": "Who wrote it?",
        "answer": "Ada Lovelace",
        "gold_docs": [{"docid": "2", "text": "Ada wrote it.", "url": "u"}],
        "evidence_docs": [{"docid": "2", "text": "Ada wrote it.", "url": "u"}],
        "negative_docs": [{"docid": "1", "text": "Bob did not.", "url": "u"}],
    }
]


def written(tmp_path, rows, name="rows.jsonl"):
    text = json.dumps(rows) if name.endswith("json") else "\n".join(map(json.dumps, rows))
    (tmp_path / name).write_text(text)
    return tmp_path


def test_oolong_scores_numbers_by_their_distance_and_labels_exactly(tmp_path):
    number, label = load("oolong", written(tmp_path, OOLONG), 9)
    assert number.text == "Date: x || Instance: Who was it?"
    assert [number.score(one) for one in ("10", "Answer: 12", "none")] == [1.0, 0.75**2, 0.0]
    assert [label.score(one) for one in ("Label: Human being.", "human")] == [1.0, 0.0]


def test_ruler_asks_the_last_line_and_counts_the_values(tmp_path):
    (task,) = load("ruler", written(tmp_path, RULER), 9)
    assert task.question == "What is the number for x? It is"
    assert (task.text.splitlines()[-1], task.seed) == ("The number for x is 4411.", 7)
    assert [task.score(one) for one in ("4411", "4411 and 5522", "")] == [0.5, 1.0, 0.0]


def test_longbench_takes_the_code_questions_and_the_letter(tmp_path):
    (task,) = load("longbench", written(tmp_path, LONGBENCH, "data.json"), 9)
    assert "(C) ccc" in task.question
    said = ("The correct answer is (C).", "C", "The correct answer is **(B)**", "A cat")
    assert [task.score(one) for one in said] == [1.0, 1.0, 0.0, 0.0]


def test_browsecomp_has_each_document_once(tmp_path):
    (task,) = load("browsecomp", written(tmp_path, BROWSECOMP), 9)
    assert task.text.count("Ada wrote it.") == 1
    assert task.text.startswith("[document 1]\nBob")
    assert task.is_right("It was Ada Lovelace.")


def test_an_empty_folder_says_what_to_do(tmp_path):
    with pytest.raises(SystemExit, match=r"has no rows of ruler: see the table in docs"):
        load("ruler", tmp_path, 9)


def test_a_benchmark_is_asked_by_make_eval_and_kept_as_json_lines(tmp_path, monkeypatch, capsys):
    async def answer(task, setup, spent):
        return Said("12")

    monkeypatch.setitem(ARMS, "bare", answer)
    data, out = written(tmp_path, OOLONG), tmp_path / "out" / "answers.jsonl"
    out.parent.mkdir()
    given = ["--benchmark", "oolong", "--data", str(data), "--model", "openai/x", "--arms", "bare"]
    main([*given, "-n", "2", "--out", str(out)])
    printed = capsys.readouterr().out
    assert "| oolong | bare | 2 | 0 |" in printed
    assert "bare: mean score 28.1 %" in printed
    assert len(out.read_text().splitlines()) == 2
