"""run_python in the loop of AutoGen, with a scripted model."""

from __future__ import annotations

from autogen_agentchat.agents import AssistantAgent
from autogen_core import FunctionCall
from autogen_core.models import CreateResult, ModelInfo, RequestUsage
from autogen_ext.models.replay import ReplayChatCompletionClient

import atoll
from atoll.integrations.autogen import as_tool


def asking(number: int, arguments: str) -> CreateResult:
    call = FunctionCall(id=str(number), name="run_python", arguments=arguments)
    usage = RequestUsage(prompt_tokens=0, completion_tokens=0)
    return CreateResult(finish_reason="function_calls", content=[call], usage=usage, cached=False)


async def test_an_agent_calls_it_and_state_is_kept():
    info = ModelInfo(
        vision=False, function_calling=True, json_output=False, family="x", structured_output=False
    )
    script = [asking(1, '{"code": "x = 6 * 7"}'), asking(2, '{"code": "x"}'), "done"]
    client = ReplayChatCompletionClient(script, model_info=info)
    with atoll.create_sandbox() as box:
        tool = as_tool(box)
        assert tool.schema["parameters"]["required"] == ["code"]
        agent = AssistantAgent("a", client, tools=[tool], max_tool_iterations=3)
        result = await agent.run(task="6 * 7?")
    texts = [str(one.content) for one in result.messages]
    assert any("content='42'" in text for text in texts)
    assert texts[-1] == "done"
