"""run_python for AutoGen: AssistantAgent(tools=[as_tool(box)])."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.integrations.agent_tool import PythonTool
from atoll.integrations.common import missing

try:
    from autogen_core.tools import FunctionTool
except ImportError as exc:
    raise ImportError(missing("autogen", "autogen")) from exc

if TYPE_CHECKING:
    from atoll.sync import SyncSandbox


def as_tool(box: SyncSandbox, **options: Any) -> FunctionTool:
    """Return a tool that runs code in `box`; `options` are those of PythonTool."""
    tool = PythonTool(box, **options)

    async def run_python(code: str) -> str:
        return await tool.arun(code)

    run_python.__annotations__ = {"code": str, "return": str}  # AutoGen reads them as types
    return FunctionTool(run_python, description=tool.description, name=tool.name)
