"""run_python for LangChain and LangGraph: tools=[as_tool(box)] of create_agent or a ToolNode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.integrations.agent_tool import PythonTool
from atoll.integrations.common import missing

try:
    from langchain_core.tools import StructuredTool
except ImportError as exc:
    raise ImportError(missing("langchain", "langchain")) from exc

if TYPE_CHECKING:
    from atoll.sync import SyncSandbox


def as_tool(box: SyncSandbox, **options: Any) -> StructuredTool:
    """Return a tool, blocking and async, that runs code in `box`; `options` are PythonTool's."""
    tool = PythonTool(box, **options)

    def run(code: str) -> str:
        return tool.run(code)

    async def arun(code: str) -> str:
        return await tool.arun(code)

    return StructuredTool.from_function(
        run, arun, name=tool.name, description=tool.description, metadata=_facts(tool)
    )


def _facts(tool: PythonTool) -> dict[str, Any]:
    return {"atoll_isolation": str(tool.isolation)}
