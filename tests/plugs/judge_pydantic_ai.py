"""run_python in the loop of Pydantic AI, with a scripted model."""

from __future__ import annotations

import json

from pydantic_ai import Agent
from pydantic_ai.messages import (
    BinaryContent,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

import atoll
from atoll.integrations.agent_tool import LiveOutput
from atoll.integrations.pydantic_ai import PythonOutputEvent, as_tool

FIGURE = "class P:\n def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n'\nP()"
FILE = "open('out.csv', 'w').write('1,2'); None"


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


async def test_events_of_a_run_have_the_output_while_code_runs():
    code = "import time\nprint('first', flush=True)\ntime.sleep(0.5)\nprint('second')"

    async def respond(messages, info):
        if len(messages) > 1:
            yield "done"
        else:
            yield {0: DeltaToolCall("run_python", json.dumps({"code": code}))}

    live = LiveOutput()
    with atoll.create_sandbox(on_output=live) as box:
        tool = as_tool(box, live=live)
        assert tool.metadata == {"atoll_isolation": str(box.isolation)}
        agent = Agent(FunctionModel(stream_function=respond), tools=[tool])
        async with agent.run_stream_events("print") as events:
            seen = [one async for one in events]
    pieces = [one for one in seen if isinstance(one, PythonOutputEvent)]
    assert [(one.stream, one.text) for one in pieces] == [
        ("stdout", "first\n"),
        ("stdout", "second\n"),
    ]
    assert {one.tool_name for one in pieces} == {"run_python"}
    answered = [n for n, one in enumerate(seen) if one.event_kind == "function_tool_result"]
    assert seen.index(pieces[-1]) < answered[0]


async def test_figures_files_and_errors_come_back():
    cells = iter([FIGURE, FILE, "1 / 0"])
    seen = []

    def respond(messages, info):
        seen[:] = [part for message in messages for part in message.parts]
        code = next(cells, None)
        if code is None:
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart("run_python", {"code": code})])

    with atoll.create_sandbox() as box:
        await Agent(FunctionModel(respond), tools=[as_tool(box)]).run("draw")
    figure, file, error = (part for part in seen if isinstance(part, ToolReturnPart))
    assert [one.outcome for one in (figure, file, error)] == ["success", "success", "failed"]
    assert "ZeroDivisionError" in str(error.content)
    assert file.metadata.files[0].content == b"1,2"
    assert "[wrote out.csv, 3 bytes]" in file.content
    given = [item for part in seen if isinstance(part, UserPromptPart) for item in part.content]
    assert [item.media_type for item in given if isinstance(item, BinaryContent)] == ["image/png"]
