"""Inspect's own self_check with the sandbox "atoll", and an eval with its mock model."""

from __future__ import annotations

import pytest
from inspect_ai import Task, eval_async
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash
from inspect_ai.util._sandbox.self_check import *  # noqa: F403
from pages import run_example

from atoll import Isolation
from atoll.integrations.inspect_ai import AtollConfig, AtollSandboxEnvironment

USERS = "a sandbox of Atoll has one user: guest"


@pytest.fixture
async def sandbox_env(request):
    if request.node.originalname == "test_exec_as_user":
        request.applymarker(pytest.mark.xfail(reason=USERS, strict=True))
    made = await AtollSandboxEnvironment.sample_init("task", None, {})
    try:
        assert made["default"].isolation >= Isolation.JAILED
        yield made["default"]
    finally:
        await AtollSandboxEnvironment.sample_cleanup("task", None, made, False)


async def test_an_eval_runs_its_commands_in_the_sandbox(tmp_path):
    calls = [
        ModelOutput.for_tool_call("mockllm/model", "bash", {"command": "id -un; hostname"}),
        ModelOutput.from_content("mockllm/model", "guest of atoll"),
    ]
    task = Task(
        dataset=[Sample("Who are you?", target="atoll")],
        solver=[use_tools(bash(timeout=30)), generate()],
        scorer=includes(),
        sandbox=("atoll", AtollConfig(policy={"max_processes": 50})),
    )
    for one in calls:  # what has its usage is not counted by tiktoken, which wants the network
        one.usage = ModelUsage()
    model = get_model("mockllm/model", custom_outputs=calls)
    (log,) = await eval_async(task, model=model, log_dir=str(tmp_path))
    assert log.status == "success", log.error
    (said,) = [one for one in log.samples[0].messages if one.role == "tool"]
    assert said.text.split() == ["guest", "atoll"]


async def test_a_configuration_of_another_provider_is_refused():
    with pytest.raises(TypeError, match="takes an AtollConfig"):
        await AtollSandboxEnvironment.sample_init("task", "compose.yaml", {})


def test_the_example_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_example("inspect_ai")
