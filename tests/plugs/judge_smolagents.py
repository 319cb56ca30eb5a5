"""smolagents' own tests of executors with AtollExecutor, and a CodeAgent with a scripted model.

The tests come from its source distribution, in ATOLL_JUDGE_SOURCE.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
import types

import pytest
from pages import run_example
from rich.console import Console
from smolagents import CodeAgent, tool
from smolagents.models import ChatMessage, Model
from smolagents.monitoring import AgentLogger, LogLevel

from atoll import Isolation, VariableError
from atoll.integrations.smolagents import AtollExecutor

for name in ("docker", "tests.utils", "tests.utils.markers"):  # which the distribution leaves out
    sys.modules.setdefault(name, types.ModuleType(name))
sys.modules["tests.utils.markers"].require_run_all = pytest.mark.skip
sys.path.insert(0, os.environ["ATOLL_JUDGE_SOURCE"])
theirs = importlib.import_module("tests.test_remote_executors")


def quiet() -> AgentLogger:
    return AgentLogger(LogLevel.ERROR, Console(force_terminal=False, file=io.StringIO()))


class TestTheirs(theirs.CommonDockerExecutorIntegration):
    @pytest.fixture
    def custom_executor(self):
        with AtollExecutor(logger=quiet()) as executor:
            yield executor


class Scripted(Model):
    def __init__(self, *cells: str) -> None:
        super().__init__(model_id="scripted")
        self._cells = iter(cells)

    def generate(self, messages, **options):
        text = f"Thought: go on\n<code>\n{next(self._cells)}\n</code>"
        return ChatMessage(role="assistant", content=text)


@tool
def population(city: str) -> int:
    """Return how many people live in a city.

    Args:
        city: The name of the city.
    """
    return {"Oslo": 717_710}[city]


def test_an_agent_keeps_state_calls_tools_and_answers():
    with AtollExecutor(logger=quiet()) as executor:
        assert executor.isolation >= Isolation.JAILED
        cells = ("people = population(city='Oslo')", "1 / 0", "final_answer(people + factor)")
        agent = CodeAgent([population], Scripted(*cells), executor=executor, verbosity_level=0)
        assert agent.run("How many?", additional_args={"factor": 1}) == 717_711
        assert "ZeroDivisionError" in str(agent.memory.steps[2].error)


def test_what_cannot_be_carried_is_refused_by_name():
    with AtollExecutor(logger=quiet()) as executor:
        with pytest.raises(VariableError, match="client"):
            executor.send_variables({"client": io.StringIO()})
        with pytest.raises(TypeError, match="broken is a str, not a tool"):
            executor.send_tools({"broken": "text"})


def test_images_and_arrays_cross_both_ways():
    numpy, images = pytest.importorskip("numpy"), pytest.importorskip("PIL.Image")
    with AtollExecutor(logger=quiet()) as executor:
        executor.send_variables({"image": images.new("RGB", (4, 5)), "array": numpy.eye(2)})
        assert executor("image.size").output == (4, 5)
        assert executor("array * 3").output.tolist() == [[3, 0], [0, 3]]


def test_the_example_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_example("smolagents")
