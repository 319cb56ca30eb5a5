"""OpenEnv's provider interfaces and executors with sandboxes: an environment's server, end to end."""

from __future__ import annotations

import pytest
from openenv.core.env_server.types import CodeExecResult
from openenv.core.generic_client import GenericEnvClient

from atoll.integrations.openenv import (
    AtollContainerProvider,
    AtollRuntimeProvider,
    PyExecutor,
    PythonExecutor,
)

APP = """\
import os
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Say(Action):
    text: str


class Said(Observation):
    text: str = ""


class Echo(Environment):
    def __init__(self):
        self._state = State(step_count=0)

    def reset(self, seed=None, episode_id=None, **_):
        return Said(text=f"{os.environ.get('GREETING')} {os.getuid()}")

    def step(self, action, **_):
        self._state.step_count += 1
        return Said(text=action.text, reward=1.0)

    @property
    def state(self):
        return self._state


app = create_app(Echo, Say, Said, env_name="echo")
"""


@pytest.fixture
def project(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "app.py").write_text(APP)
    return str(tmp_path)


async def test_an_environment_runs_in_a_sandbox_and_is_used_by_its_client(project):
    provider = AtollRuntimeProvider(project)
    url = provider.start(env_vars={"GREETING": "hello"})
    try:
        provider.wait_for_ready()
        async with GenericEnvClient(base_url=url) as client:
            assert (await client.reset()).observation["text"] == "hello 1000"
            step = await client.step({"text": "echoed"})
            assert (step.observation["text"], step.reward) == ("echoed", 1.0)
            assert (await client.state())["step_count"] == 1
    finally:
        provider.stop()
        provider.stop()


def test_an_environment_that_does_not_start_is_named(project):
    with pytest.raises(RuntimeError, match="did not start"):
        AtollContainerProvider(image="host").start_container("echo-env:latest")
    provider = AtollRuntimeProvider(project, app="no.such:app")
    url = provider.start()
    with pytest.raises(RuntimeError, match="No module named 'no'"):
        provider.wait_for_ready()
    provider.stop()
    with pytest.raises(TimeoutError, match=url):
        provider.wait_for_ready(0.1)


def test_the_executor_of_coding_env():
    executor = PyExecutor()
    assert executor.run("x = 20\nprint('a')\nx + 1") == CodeExecResult(
        stdout="a\n21", stderr="", exit_code=0
    )
    failed = executor.run("1 / 0")
    assert (failed.exit_code, "ZeroDivisionError" in failed.stderr) == (1, True)
    assert executor.run("x").stdout == "20"
    executor.close()


def test_the_executor_of_repl_env():
    executor = PythonExecutor(max_output_length=50)
    executor.set_context("a text")
    executor.inject_function("llm_query", lambda prompt: prompt.upper())
    executor.inject_function("SHOW_VARS", lambda: sorted(executor.list_variables()))
    done = executor.execute("said = llm_query(context)\nprint('y' * 100)\nSHOW_VARS()")
    assert done["success"]
    assert done["stdout"].endswith("chars)")
    assert done["locals_snapshot"] == {"said": "'A TEXT'"}
    assert executor.get_variable("said") == "A TEXT"
    executor.reset()
    assert executor.get_variable("said") is None
    executor.close()
