"""run_python for the OpenAI Agents SDK: Agent(tools=[as_tool(box)]).

The SDK has no way for a tool to add events to a run's stream; create_sandbox(on_output=...) does.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from atoll.integrations.agent_tool import SCHEMA, PythonTool
from atoll.integrations.common import missing

try:
    from agents import FunctionTool
except ImportError as exc:
    raise ImportError(missing("openai-agents", "openai_agents")) from exc

if TYPE_CHECKING:
    from atoll.sandbox.blocking import SyncSandbox


def as_tool(box: SyncSandbox, **options: Any) -> FunctionTool:
    """Return a tool that runs code in `box`; `options` are those of PythonTool."""
    tool = PythonTool(box, **options)

    async def invoke(_context: Any, arguments: str) -> str:
        given = json.loads(arguments)
        if not isinstance(given, dict) or not isinstance(given.get("code"), str):
            return 'Error: call it with {"code": "..."}'
        return await tool.arun(given["code"])

    return FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=dict(SCHEMA),
        on_invoke_tool=invoke,
        strict_json_schema=True,
    )
