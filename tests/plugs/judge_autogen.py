"""run_python in the loop of AutoGen, with a scripted model."""

from __future__ import annotations

import json

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import ModelClientStreamingChunkEvent, ToolCallExecutionEvent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import FunctionCall
from autogen_core.models import CreateResult, ModelInfo, RequestUsage
from autogen_ext.models.replay import ReplayChatCompletionClient

import atoll
from atoll.integrations.agent_tool import LiveOutput
from atoll.integrations.autogen import as_tool

FIGURE = "class P:\n def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n'\nP()"
FILE = "open('out.csv', 'w').write('1,2'); None"


def asking(number: int, arguments: str) -> CreateResult:
    call = FunctionCall(id=str(number), name="run_python", arguments=arguments)
    usage = RequestUsage(prompt_tokens=0, completion_tokens=0)
    return CreateResult(finish_reason="function_calls", content=[call], usage=usage, cached=False)


def scripted(*script) -> ReplayChatCompletionClient:
    info = ModelInfo(
        vision=False, function_calling=True, json_output=False, family="x", structured_output=False
    )
    return ReplayChatCompletionClient(list(script), model_info=info)


async def test_an_agent_calls_it_and_state_is_kept():
    client = scripted(asking(1, '{"code": "x = 6 * 7"}'), asking(2, '{"code": "x"}'), "done")
    with atoll.create_sandbox() as box:
        tool = as_tool(box)
        assert tool.schema["parameters"]["required"] == ["code"]
        assert tool.isolation == box.isolation
        agent = AssistantAgent("a", client, tools=[tool], max_tool_iterations=3)
        result = await agent.run(task="6 * 7?")
    texts = [str(one.content) for one in result.messages]
    assert any("content='42'" in text for text in texts)
    assert texts[-1] == "done"


async def test_a_team_streams_the_output_while_code_runs():
    code = "import time\\nprint('first', flush=True)\\ntime.sleep(0.5)\\nprint('second')"
    client = scripted(asking(1, f'{{"code": "{code}"}}'), "done")
    live = LiveOutput()
    with atoll.create_sandbox(on_output=live) as box:
        agent = AssistantAgent("a", client, tools=[as_tool(box, live=live)], max_tool_iterations=2)
        team = RoundRobinGroupChat([agent], termination_condition=MaxMessageTermination(2))
        told = [one async for one in team.run_stream(task="print")]
    pieces = [one for one in told if isinstance(one, ModelClientStreamingChunkEvent)]
    assert [one.content for one in pieces] == ["first\n", "second\n"]
    assert pieces[0].metadata == {"tool": "run_python", "stream": "stdout"}
    assert any("content='first\\nsecond'" in str(getattr(one, "content", "")) for one in told)


async def test_figures_files_and_errors_come_back():
    answers = []
    cells = [json.dumps({"code": code}) for code in (FIGURE, FILE, "1 / 0")]
    client = scripted(*(asking(number, cell) for number, cell in enumerate(cells)), "done")
    with atoll.create_sandbox() as box:
        tool = as_tool(box, on_answer=answers.append)
        agent = AssistantAgent("a", client, tools=[tool], max_tool_iterations=4)
        messages = (await agent.run(task="draw")).messages
    results = [one.content[0] for one in messages if isinstance(one, ToolCallExecutionEvent)]
    assert [one.is_error for one in results] == [False, False, True]
    assert "[wrote out.csv, 3 bytes]" in results[1].content
    assert "ZeroDivisionError" in results[2].content
    assert answers[0].images[0].data.startswith(b"\x89PNG")
    assert answers[1].files[0].content == b"1,2"
