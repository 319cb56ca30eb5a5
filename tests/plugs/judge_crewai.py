"""run_python in the loop of CrewAI, with a scripted model."""

from __future__ import annotations

import os

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true"}

from crewai import Agent, BaseLLM, Crew, Task

import atoll
from atoll.integrations.crewai import as_tool


class Scripted(BaseLLM):
    def __init__(self, **options) -> None:
        super().__init__(model="scripted", **options)
        self._said = iter(
            [
                'Thought: compute\nAction: run_python\nAction Input: {"code": "x = 6 * 7"}',
                'Thought: look\nAction: run_python\nAction Input: {"code": "print(x)"}',
            ]
        )
        self._seen = ""

    def call(self, messages, *args, **kwargs):
        self._seen = str(messages)
        return next(self._said, None) or f"Thought: done\nFinal Answer: {self._observed()}"

    def _observed(self) -> str:
        return "42" if "Observation: 42" in self._seen else "not seen"

    def supports_function_calling(self) -> bool:
        return False


def test_a_crew_calls_it_and_state_is_kept():
    with atoll.create_sandbox() as box:
        agent = Agent(
            role="r", goal="g", backstory="b", llm=Scripted(), tools=[as_tool(box)], verbose=False
        )
        task = Task(description="6 * 7?", expected_output="a number", agent=agent)
        assert Crew(agents=[agent], tasks=[task]).kickoff().raw == "42"
