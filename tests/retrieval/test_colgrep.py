"""colgrep: code by meaning and by a regular expression, from the command line and from a guest."""

from __future__ import annotations

import json

import pytest

import atoll
from atoll.agent.retrieval.retriever import colgrep, open_index
from atoll.cli.main import main

CODE = '''
def send_again(request):
    """Retry a request that failed, with a growing delay."""
    return backoff(request)


def read_settings(path):
    """Read the configuration of the program from a file."""
    return parse(open(path))


def read_environment():
    """Read the configuration of the program from os.environ."""
    return dict(os.environ)
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "tool.py").write_text(CODE)
    return tmp_path / "code"


@pytest.mark.spec("R4.22")
def test_the_command_and_the_guest_find_the_same_units(folder, capsys):
    assert main(["colgrep", "retry a failed request", str(folder), "-k", "1"]) == 0
    assert capsys.readouterr().out.startswith("tool.py:2-4  ")
    with atoll.REPLEnvironment(backend="native", documents=folder) as env:
        turn = env.execute("hits = colgrep('retry a failed request', k=1)\nFINAL(hits[0]['name'])")
        assert turn.final.text == "send_again"
        assert "colgrep(query, pattern=None, k=10)" in env.tool_list()


def test_late_interaction_is_used_where_there_is_a_model(folder):
    pytest.importorskip("onnxruntime")
    with open_index(folder) as index:
        assert colgrep(index, "retry").mode_used == "maxsim"


def test_a_pattern_leaves_those_that_it_matches(folder, capsys):
    assert main(["colgrep", "configuration", str(folder), "-e", r"os\.env\w+", "--json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)] == ["read_environment"]
    assert main(["colgrep", "configuration", str(folder), "-e", "nowhere"]) == 1


def test_a_wrong_pattern_is_an_error_in_words(folder, capsys):
    assert main(["colgrep", "configuration", str(folder), "-e", "("]) == 2
    assert "(" in capsys.readouterr().err


def test_without_a_model_the_command_to_install_it_is_said(folder, monkeypatch):
    monkeypatch.setattr("atoll.agent.retrieval.vectors.is_installed", lambda: False)
    with open_index(folder) as index:
        warning = colgrep(index, "retry").warning
    assert warning.startswith("found by words alone: ")
    assert "pip install" in warning
