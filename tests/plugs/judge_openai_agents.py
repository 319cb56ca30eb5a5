"""run_python in the loop of the OpenAI Agents SDK, with a scripted model."""

from __future__ import annotations

import json

from agents import Agent, Model, ModelResponse, Runner, Usage, set_tracing_disabled
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

import atoll
from atoll.integrations.openai_agents import as_tool

FIGURE = "class P:\n def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n'\nP()"
FILE = "open('out.csv', 'w').write('1,2'); None"


class Scripted(Model):
    def __init__(self, *cells) -> None:
        self.cells, self.seen = iter(cells or ["x = 6 * 7", "x"]), []

    async def get_response(self, system_instructions, input, *args, **kwargs):  # noqa: A002
        self.seen = [one for one in input if one.get("type") == "function_call_output"]
        code = next(self.cells, None)
        if code is not None:
            call = ResponseFunctionToolCall(
                type="function_call", name="run_python", call_id=code,
                arguments=json.dumps({"code": code}),
            )  # fmt: skip
            return ModelResponse([call], Usage(), None)
        said = ResponseOutputText(
            type="output_text", text=str(self.seen[-1]["output"]), annotations=[]
        )
        message = ResponseOutputMessage(
            id="1", type="message", role="assistant", status="completed", content=[said]
        )
        return ModelResponse([message], Usage(), None)

    def stream_response(self, *args, **kwargs):
        raise NotImplementedError


async def test_an_agent_calls_it_and_state_is_kept():
    set_tracing_disabled(True)
    with atoll.create_sandbox() as box:
        agent = Agent(name="a", model=Scripted(), tools=[as_tool(box)])
        assert (await Runner.run(agent, "6 * 7?")).final_output == "42"


async def test_arguments_of_another_shape_are_an_answer():
    with atoll.create_sandbox() as box:
        tool = as_tool(box)
        assert "call it with" in await tool.on_invoke_tool(None, "[]")
        assert tool.params_json_schema["required"] == ["code"]


async def test_figures_files_and_errors_come_back():
    answers, model = [], Scripted(FIGURE, FILE, "1 / 0")
    with atoll.create_sandbox() as box:
        agent = Agent(name="a", model=model, tools=[as_tool(box, on_answer=answers.append)])
        await Runner.run(agent, "draw")
    figure, file, error = (one["output"] for one in model.seen)
    assert [part["type"] for part in figure] == ["input_text", "input_image"]
    assert figure[1]["image_url"].startswith("data:image/png;base64,iVBO")
    assert "[wrote out.csv, 3 bytes]" in file
    assert answers[1].files[0].content == b"1,2"
    assert error.startswith("Error: the code failed.")
    assert "ZeroDivisionError" in error
