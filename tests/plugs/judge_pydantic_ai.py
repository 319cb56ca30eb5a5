"""run_python in the loop of Pydantic AI, with a scripted model."""

from __future__ import annotations

from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel

import atoll
from atoll.integrations.pydantic_ai import as_tool


async def test_an_agent_calls_it_and_state_is_kept():
    cells = iter(["x = 6 * 7", "x"])

    def respond(messages, info):
        assert [one.name for one in info.function_tools] == ["run_python"]
        code = next(cells, None)
        if code is not None:
            return ModelResponse(parts=[ToolCallPart("run_python", {"code": code})])
        answers = [
            part.content
            for message in messages
            for part in message.parts
            if isinstance(part, ToolReturnPart)
        ]
        return ModelResponse(parts=[TextPart(" ".join(answers))])

    with atoll.create_sandbox() as box:
        agent = Agent(FunctionModel(respond), tools=[as_tool(box)])
        assert (await agent.run("6 * 7?")).output == "(no output) 42"
