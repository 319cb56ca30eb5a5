"""run_python for Pydantic AI: Agent(model, tools=[as_tool(box)])."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.integrations.agent_tool import PythonTool
from atoll.integrations.common import missing

try:
    from pydantic_ai import Tool
except ImportError as exc:
    raise ImportError(missing("pydantic-ai", "pydantic_ai")) from exc

if TYPE_CHECKING:
    from atoll.sync import SyncSandbox


def as_tool(box: SyncSandbox, **options: Any) -> Tool[Any]:
    """Return a tool that runs code in `box`; `options` are those of PythonTool."""
    tool = PythonTool(box, **options)

    async def run_python(code: str) -> str:
        return await tool.arun(code)

    return Tool(run_python, takes_ctx=False, name=tool.name, description=tool.description)
