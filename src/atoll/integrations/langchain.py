"""run_python for LangChain and LangGraph: tools=[as_tool(box)] of create_agent or a ToolNode.

A ToolMessage has the figures as image blocks, the Answer as its artifact, and status "error" if
the code failed. With LiveOutput, agent.stream(..., stream_mode="custom") yields output while code
runs.
"""

from __future__ import annotations

import base64
import contextvars
from typing import TYPE_CHECKING, Any

from atoll.integrations.agent_tool import Answer, PythonTool  # noqa: TC001 - LangChain reads annotations
from atoll.integrations.common import missing

try:
    from langchain_core.tools import StructuredTool, ToolException
except ImportError as exc:
    raise ImportError(missing("langchain", "langchain")) from exc

if TYPE_CHECKING:
    from atoll.config import OutputCallback
    from atoll.sandbox.blocking import SyncSandbox


class CodeFailed(ToolException):
    """Code that failed."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.text)
        self.answer = answer


def as_tool(box: SyncSandbox, **options: Any) -> StructuredTool:
    """Return a tool, blocking and async, that runs code in `box`; `options` are PythonTool's."""
    tool = PythonTool(box, **options)

    def run(code: str) -> tuple[Any, Answer]:
        return _returned(tool.run(code, _to_stream(tool.name)))

    async def arun(code: str) -> tuple[Any, Answer]:
        return _returned(await tool.arun(code, _to_stream(tool.name)))

    return StructuredTool.from_function(
        run,
        arun,
        name=tool.name,
        description=tool.description,
        metadata=_facts(tool),
        response_format="content_and_artifact",
        handle_tool_error=lambda failed: _content(failed.answer),
    )


def _returned(answer: Answer) -> tuple[Any, Answer]:
    if answer.failed:
        raise CodeFailed(answer)
    return _content(answer), answer


def _content(answer: Answer) -> str | list[dict[str, Any]]:
    """Return the text, or blocks of the text and the figures."""
    if not answer.images:
        return answer.text
    images = [
        {
            "type": "image",
            "base64": base64.b64encode(image.data).decode(),
            "mime_type": image.media_type,
        }
        for image in answer.images
    ]
    return [{"type": "text", "text": answer.text}, *images]


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
