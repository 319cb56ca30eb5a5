"""DSPy with AtollInterpreter: the protocol, typed SUBMIT, and dspy.RLM with a scripted model.

DSPy's distribution has no tests of interpreters. With ATOLL_DSPY_TESTS set to a checkout of its
repository, `make test-plugs` runs those as well, with `dspy_substituted`.
"""

from __future__ import annotations

import socket

import dspy
import pytest
from dspy.primitives.code_interpreter import (
    CodeExecutionError,
    CodeInterpreter,
    CodeInterpreterError,
    FinalOutput,
)
from dspy.utils.dummies import DummyLM
from pages import run_example

from atoll import Isolation
from atoll.integrations.dspy import AtollInterpreter, interpreter_factory


@pytest.fixture(scope="module")
def interpreter():
    with AtollInterpreter() as made:
        yield made


def test_it_keeps_the_protocol(interpreter):
    assert isinstance(interpreter, CodeInterpreter)
    interpreter.start()
    interpreter.start()
    assert interpreter.isolation >= Isolation.JAILED
    assert interpreter.execute("x = 1\nprint(x)") == "1\n"
    assert interpreter.execute("x + n", {"n": 2}) == 3
    assert interpreter.execute("(1, {2}, b'3')") == [1, [2], "b'3'"]


def test_errors_of_the_code_can_be_repaired(interpreter):
    with pytest.raises(SyntaxError, match="Invalid Python syntax"):
        interpreter.execute("+++")
    with pytest.raises(CodeExecutionError, match=r"ValueError: \['a', 1\]"):
        interpreter.execute("raise ValueError('a', 1)")
    with pytest.raises(CodeExecutionError, match="Mine"):
        interpreter.execute("class Mine(SystemExit): pass\nraise Mine(0)")
    assert interpreter.execute("x") == 1


def test_submit_is_typed_and_tools_can_change(interpreter):
    interpreter.tools["double"] = lambda n: 2 * n
    interpreter.output_fields = [{"name": "answer", "type": "str"}, {"name": "score"}]
    assert interpreter.execute("SUBMIT('a', double(2))") == FinalOutput({"answer": "a", "score": 4})
    with pytest.raises(CodeExecutionError, match="missing 1 required positional argument"):
        interpreter.execute("SUBMIT('a')")
    with pytest.raises(CodeExecutionError, match="score is a Thing"):
        interpreter.execute("class Thing: pass\nSUBMIT('a', Thing())")
    interpreter.tools.clear()
    interpreter.output_fields = None
    with pytest.raises(CodeExecutionError, match="NameError"):
        interpreter.execute("double(2)")
    assert interpreter.execute("SUBMIT([1])") == FinalOutput({"output": [1]})


def test_what_cannot_be_carried_is_refused_by_name(interpreter):
    with (
        socket.socket() as live,
        pytest.raises(CodeInterpreterError, match=r"socket \(variable s\)"),
    ):
        interpreter.execute("s", {"s": live})


def test_a_session_that_is_lost_stays_lost():
    with AtollInterpreter() as made:
        with pytest.raises(CodeInterpreterError, match="interpreter state was lost"):
            made.execute("import os; os._exit(3)")
        with pytest.raises(CodeInterpreterError, match="session has ended"):
            made.execute("1")


def test_isolation_that_cannot_be_had_is_an_error():
    weak = AtollInterpreter(backend="restricted", min_isolation="virtual")
    with pytest.raises(CodeInterpreterError, match="no sandbox could be started"):
        weak.execute("1")


def test_rlm_reads_a_shared_document_and_calls_tools():
    document = "line\n" * 400_000 + "the key is 42\n"
    steps = [
        {"reasoning": "look", "code": "print(len(document), document[-14:], length(s='abc'))"},
        {"reasoning": "answer", "code": "SUBMIT(document.rsplit(' ', 1)[1].strip())"},
    ]

    def length(s: str) -> int:
        return len(s)

    rlm = dspy.RLM(
        "document -> answer",
        tools=[length],
        interpreter_factory=interpreter_factory(shared=document),
    )
    with dspy.context(lm=DummyLM(steps)):
        found = rlm(document=document)
    assert found.answer == "42"
    assert "2000014 the key is 42" in str(found.trajectory)


def test_the_example_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_example("dspy")
