"""run_python in the loops of LangChain and LangGraph, with a scripted model."""

from __future__ import annotations

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from pages import run_example

import atoll
from atoll.integrations.agent_tool import LiveOutput
from atoll.integrations.langchain import as_tool

FIGURE = "class P:\n def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n'\nP()"
FILE = "open('out.csv', 'w').write('1,2'); None"


class Scripted(GenericFakeChatModel):
    def bind_tools(self, tools, **options):
        assert [one.name for one in tools] == ["run_python"]
        return self


def model(*cells):
    cells = cells or ("x = 6 * 7", "print(x)", "1 / 0")
    calls = [
        AIMessage("", tool_calls=[{"name": "run_python", "args": {"code": code}, "id": str(n)}])
        for n, code in enumerate(cells)
    ]
    return Scripted(messages=iter([*calls, AIMessage("42")]))


def check(messages) -> None:
    answers = [one.text for one in messages if one.type == "tool"]
    assert answers[:2] == ["(no output)", "42"]
    assert "ZeroDivisionError" in answers[2]
    assert messages[-1].text == "42"


def test_an_agent_calls_it_and_state_is_kept():
    with atoll.create_sandbox() as box:
        tool = as_tool(box)
        assert tool.metadata == {"atoll_isolation": str(box.isolation)}
        check(create_agent(model(), [tool]).invoke({"messages": [("user", "6 * 7?")]})["messages"])


def test_figures_files_and_errors_come_back():
    with atoll.create_sandbox() as box:
        agent = create_agent(model(FIGURE, FILE, "1 / 0"), [as_tool(box)])
        messages = agent.invoke({"messages": [("user", "draw")]})["messages"]
    figure, file, error = (one for one in messages if one.type == "tool")
    assert [one["type"] for one in figure.content_blocks] == ["text", "image"]
    assert figure.artifact.images[0].data.startswith(b"\x89PNG")
    assert file.artifact.files[0].content == b"1,2"
    assert "[wrote out.csv, 3 bytes]" in file.text
    assert [one.status for one in (figure, file, error)] == ["success", "success", "error"]
    assert "ZeroDivisionError" in error.text


async def test_an_async_agent_calls_it():
    with atoll.create_sandbox() as box:
        agent = create_agent(model(), [as_tool(box)])
        check((await agent.ainvoke({"messages": [("user", "6 * 7?")]}))["messages"])


def test_a_graph_streams_what_code_prints_as_it_comes():
    live = LiveOutput()
    with atoll.create_sandbox(on_output=live) as box:
        agent = create_agent(model(), [as_tool(box, live=live)])
        asked = {"messages": [("user", "6 * 7?")]}
        told = list(agent.stream(asked, stream_mode=["custom", "updates"]))
    pieces = [one for kind, one in told if kind == "custom"]
    assert pieces[0] == {"tool": "run_python", "stream": "stdout", "text": "42\n"}
    first = told.index(("custom", pieces[0]))
    answered = [n for n, (kind, one) in enumerate(told) if kind == "updates" and "tools" in one]
    assert answered[0] < first < answered[1]


async def test_an_async_graph_streams_too():
    live = LiveOutput()
    with atoll.create_sandbox(on_output=live) as box:
        agent = create_agent(model(), [as_tool(box, live=live)])
        asked = {"messages": [("user", "6 * 7?")]}
        told = [one async for one in agent.astream(asked, stream_mode="custom")]
    assert told[0]["text"] == "42\n"


def test_the_example_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_example("agents")
