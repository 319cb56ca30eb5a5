"""run_python for LangChain and LangGraph: tools=[as_tool(box)] of create_agent or a ToolNode.

With LiveOutput, agent.stream(..., stream_mode="custom") yields output while code runs.
"""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any

from atoll.integrations.agent_tool import PythonTool
from atoll.integrations.common import missing

try:
    from langchain_core.tools import StructuredTool
except ImportError as exc:
    raise ImportError(missing("langchain", "langchain")) from exc

if TYPE_CHECKING:
    from atoll.config import OutputCallback
    from atoll.sandbox.blocking import SyncSandbox


def as_tool(box: SyncSandbox, **options: Any) -> StructuredTool:
    """Return a tool, blocking and async, that runs code in `box`; `options` are PythonTool's."""
    tool = PythonTool(box, **options)

    def run(code: str) -> str:
        return tool.run(code, _to_stream(tool.name))

    async def arun(code: str) -> str:
        return await tool.arun(code, _to_stream(tool.name))

    return StructuredTool.from_function(
        run, arun, name=tool.name, description=tool.description, metadata=_facts(tool)
    )


def _to_stream(name: str) -> OutputCallback | None:
    """Return a function that writes to LangGraph's custom stream; None outside of a graph."""
    try:
        from langgraph.config import get_stream_writer  # noqa: PLC0415 - LangChain may be alone

        write = get_stream_writer()
    except (ImportError, RuntimeError, LookupError):  # outside of a graph
        return None
    here = contextvars.copy_context()  # the writer looks up its graph when it is called
    return lambda stream, text: here.run(write, {"tool": name, "stream": stream, "text": text})


def _facts(tool: PythonTool) -> dict[str, object]:
    return {"atoll_isolation": str(tool.isolation)}
