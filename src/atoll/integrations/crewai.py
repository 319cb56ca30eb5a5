"""run_python for CrewAI: Agent(tools=[as_tool(box)])."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.integrations.agent_tool import PythonTool
from atoll.integrations.common import missing

try:
    from crewai.tools import BaseTool
    from pydantic import BaseModel, Field, PrivateAttr
except ImportError as exc:
    raise ImportError(missing("crewai", "crewai")) from exc

if TYPE_CHECKING:
    from atoll.sync import SyncSandbox


class Arguments(BaseModel):
    """What a model gives."""

    code: str = Field(description="Python code to run")


class RunPython(BaseTool):  # type: ignore[misc]
    """The tool as CrewAI has it."""

    args_schema: type[BaseModel] = Arguments
    _tool: PythonTool = PrivateAttr()

    def _run(self, code: str) -> str:
        return self._tool.run(code)


def as_tool(box: SyncSandbox, **options: Any) -> RunPython:
    """Return a tool that runs code in `box`; `options` are those of PythonTool."""
    tool = PythonTool(box, **options)
    made = RunPython(name=tool.name, description=tool.description)
    made._tool = tool  # noqa: SLF001 - its own class
    return made
