"""run_python in the loop of CrewAI, with a scripted model."""

from __future__ import annotations

import json
import os

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true"}

from crewai import Agent, BaseLLM, Crew, Task
from crewai.events.event_bus import crewai_event_bus

import atoll
from atoll.integrations.agent_tool import LiveOutput
from atoll.integrations.crewai import PythonAnswerEvent, PythonOutputEvent, as_tool

FIGURE = "class P:\n def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n'\nP()"
FILE = "open('out.csv', 'w').write('1,2'); None"


class Scripted(BaseLLM):
    def __init__(self, *cells: str, **options) -> None:
        super().__init__(model="scripted", **options)
        self._said = iter(
            f"Thought: compute\nAction: run_python\nAction Input: {json.dumps({'code': cell})}"
            for cell in cells
        )
        self._seen = ""

    def call(self, messages, *args, **kwargs):
        self._seen = str(messages)
        return next(self._said, None) or f"Thought: done\nFinal Answer: {self._observed()}"

    def _observed(self) -> str:
        return "42" if "Observation: 42" in self._seen else "not seen"

    def supports_function_calling(self) -> bool:
        return False


def run_crew(model: Scripted, tool) -> str:
    agent = Agent(role="r", goal="g", backstory="b", llm=model, tools=[tool], verbose=False)
    task = Task(description="6 * 7?", expected_output="a number", agent=agent)
    return Crew(agents=[agent], tasks=[task]).kickoff().raw


def test_a_crew_calls_it_and_state_is_kept():
    with atoll.create_sandbox() as box:
        tool = as_tool(box)
        assert tool.isolation == box.isolation
        assert run_crew(Scripted("x = 6 * 7", "print(x)"), tool) == "42"


def test_the_event_bus_has_the_output_while_code_runs():
    live, seen = LiveOutput(), []
    with crewai_event_bus.scoped_handlers(), atoll.create_sandbox(on_output=live) as box:

        @crewai_event_bus.on(PythonOutputEvent)
        def note(source, event):
            seen.append((event.emission_sequence, event.stream, event.chunk))

        code = "import time\nprint(40, flush=True)\ntime.sleep(0.5)\nprint(42)"
        run_crew(Scripted(code), as_tool(box, live=live))
        crewai_event_bus.flush()
    assert [one[1:] for one in sorted(seen)] == [("stdout", "40\n"), ("stdout", "42\n")]


def test_figures_files_and_errors_come_back():
    seen = []
    model = Scripted(FIGURE, FILE, "1 / 0")
    with crewai_event_bus.scoped_handlers(), atoll.create_sandbox() as box:

        @crewai_event_bus.on(PythonAnswerEvent)
        def note(source, event):
            seen.append((event.emission_sequence, event.answer))

        run_crew(model, as_tool(box))
        crewai_event_bus.flush()
    figure, file, error = (one[1] for one in sorted(seen, key=lambda one: one[0]))
    assert figure.images[0].data.startswith(b"\x89PNG")
    assert file.files[0].content == b"1,2"
    assert [one.failed for one in (figure, file, error)] == [False, False, True]
    assert "[wrote out.csv, 3 bytes]" in model._seen
    assert "Error: the code failed." in model._seen
    assert "ZeroDivisionError" in model._seen
