"""run_python for CrewAI: Agent(tools=[as_tool(box)]).

With LiveOutput, CrewAI's event bus gets a PythonOutputEvent for each piece of output.
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
    from atoll.config import OutputCallback
    from atoll.policy import Isolation
    from atoll.sandbox.blocking import SyncSandbox


class Arguments(BaseModel):
    """The arguments that a model gives."""

    code: str = Field(description="Python code to run")


class PythonOutputEvent(BaseEvent):  # type: ignore[misc]
    """A piece of what code has printed; `stream` is stdout or stderr."""

    type: Literal["atoll_python_output"] = "atoll_python_output"
    tool_name: str
    stream: str
    chunk: str


class RunPython(BaseTool):  # type: ignore[misc]
    """The tool as CrewAI has it."""

    args_schema: type[BaseModel] = Arguments
    _tool: PythonTool = PrivateAttr()

    @property
    def isolation(self) -> Isolation:
        """How strongly the code is isolated from the host."""
        return self._tool.isolation

    def _run(self, code: str) -> str:
        return self._tool.run(code, self._to_events() if self._tool.streams else None)

    def _to_events(self) -> OutputCallback:
        here = contextvars.copy_context()  # the bus finds the streams of this crew in it

        def emit(stream: str, text: str) -> None:
            event = PythonOutputEvent(tool_name=self.name, stream=stream, chunk=text)
            here.run(crewai_event_bus.emit, self, event)

        return emit


def as_tool(box: SyncSandbox, **options: Any) -> RunPython:
    """Return a tool that runs code in `box`; `options` are those of PythonTool."""
    tool = PythonTool(box, **options)
    made = RunPython(name=tool.name, description=tool.description)
    made._tool = tool  # noqa: SLF001 - its own class
    return made
