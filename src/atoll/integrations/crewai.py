"""run_python for CrewAI: Agent(tools=[as_tool(box)]).

CrewAI has only text for a tool's result: the text of code that failed begins with "Error", and each
call is a PythonAnswerEvent on the event bus, with figures, files and whether the code failed. With
LiveOutput, CrewAI's event bus gets a PythonOutputEvent for each piece of output.
"""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any, Literal

from atoll.integrations.agent_tool import PythonTool
from atoll.integrations.common import missing

try:
    from crewai.events.base_events import BaseEvent
    from crewai.events.event_bus import crewai_event_bus
    from crewai.tools import BaseTool
    from pydantic import BaseModel, Field, PrivateAttr
except ImportError as exc:
    raise ImportError(missing("crewai", "crewai")) from exc

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.policy import Isolation
    from atoll.sandbox.blocking import SyncSandbox


class Arguments(BaseModel):
    """The arguments that a model gives."""

    code: str = Field(description="Python code to run")


class PythonOutputEvent(BaseEvent):  # type: ignore[misc]
    """A piece of a cell's output; `stream` is stdout or stderr."""

    type: Literal["atoll_python_output"] = "atoll_python_output"
    tool_name: str
    stream: str
    chunk: str


class PythonAnswerEvent(BaseEvent):  # type: ignore[misc]
    """What a call returned."""

    type: Literal["atoll_python_answer"] = "atoll_python_answer"
    tool_name: str
    failed: bool
    answer: Any = Field(exclude=True)


class RunPython(BaseTool):  # type: ignore[misc]
    """The tool as CrewAI has it."""

    args_schema: type[BaseModel] = Arguments
    _tool: PythonTool = PrivateAttr()

    @property
    def isolation(self) -> Isolation:
        """How strongly the code is isolated from the host."""
        return self._tool.isolation

    def _run(self, code: str) -> str:
        emit = self._emitter()

        def on_output(stream: str, text: str) -> None:
            emit(PythonOutputEvent(tool_name=self.name, stream=stream, chunk=text))

        answer = self._tool.run(code, on_output if self._tool.streams else None)
        emit(PythonAnswerEvent(tool_name=self.name, failed=answer.failed, answer=answer))
        return f"Error: the code failed.\n{answer.text}" if answer.failed else answer.text

    def _emitter(self) -> Callable[[BaseEvent], None]:
        here = contextvars.copy_context()  # the bus finds the streams of this crew in it
        return lambda event: here.run(crewai_event_bus.emit, self, event)


def as_tool(box: SyncSandbox, **options: Any) -> RunPython:
    """Return a tool that runs code in `box`; `options` are those of PythonTool."""
    tool = PythonTool(box, **options)
    made = RunPython(name=tool.name, description=tool.description)
    made._tool = tool  # noqa: SLF001 - its own class
    return made
