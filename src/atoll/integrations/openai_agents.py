"""run_python for the OpenAI Agents SDK: Agent(tools=[as_tool(box)]).

Figures come back as images; files are in the Answer that `on_answer` gets. The SDK has no status of
a tool's result, so the text of code that failed begins with "Error", and its span has the error.
The SDK has no way for a tool to add events to a run's stream; create_sandbox(on_output=...) does.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from atoll.integrations.agent_tool import SCHEMA, PythonTool
from atoll.integrations.common import missing

try:
    from agents import FunctionTool, ToolOutputImage, ToolOutputText
    from agents.tracing import get_current_span
except ImportError as exc:
    raise ImportError(missing("openai-agents", "openai_agents")) from exc

if TYPE_CHECKING:
    from atoll.integrations.agent_tool import Answer
    from atoll.sandbox.blocking import SyncSandbox


def as_tool(box: SyncSandbox, **options: Any) -> FunctionTool:
    """Return a tool that runs code in `box`; `options` are those of PythonTool."""
    tool = PythonTool(box, **options)

    async def invoke(_context: Any, arguments: str) -> Any:
        given = json.loads(arguments)
        if not isinstance(given, dict) or not isinstance(given.get("code"), str):
            return 'Error: call it with {"code": "..."}'
        return _returned(await tool.arun(given["code"]))

    return FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=dict(SCHEMA),
        on_invoke_tool=invoke,
        strict_json_schema=True,
    )


def _returned(answer: Answer) -> Any:
    text = answer.text
    if answer.failed:
        text = f"Error: the code failed.\n{text}"
        if (span := get_current_span()) is not None:
            span.set_error({"message": "the code failed", "data": {"output": answer.text[-2000:]}})
    if not answer.images:
        return text
    urls = [
        f"data:{image.media_type};base64,{base64.b64encode(image.data).decode()}"
        for image in answer.images
    ]
    return [ToolOutputText(text=text), *(ToolOutputImage(image_url=url) for url in urls)]
