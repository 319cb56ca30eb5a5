"""run_python for Pydantic AI: Agent(model, tools=[as_tool(box)]).

Figures come back as images, and the Answer is the metadata of the tool's return. Code that failed
is a return with the outcome "failed". With LiveOutput, a run's event stream has a PythonOutputEvent
for each piece of output.
"""

from __future__ import annotations

import contextlib
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.errors import ConfigError
from atoll.integrations.agent_tool import Answer, PythonTool
from atoll.integrations.common import missing

try:
    from pydantic_ai import BinaryContent, RunContext, Tool, ToolReturn  # noqa: TC002 - Pydantic AI reads annotations
    from pydantic_ai.exceptions import UserError
except ImportError as exc:
    raise ImportError(missing("pydantic-ai", "pydantic_ai")) from exc
try:
    from pydantic_ai import CustomEvent
except ImportError:  # a version before custom events
    CustomEvent = None
try:
    from pydantic_ai.exceptions import ToolFailed
except ImportError:  # a version before it
    ToolFailed = None

if TYPE_CHECKING:
    from atoll.sandbox.blocking import SyncSandbox

if CustomEvent is not None:

    @dataclass(kw_only=True)
    class PythonOutputEvent(CustomEvent, name="atoll_python_output"):  # type: ignore[call-arg,misc]
        """A piece of a cell's output; `stream` is stdout or stderr."""

        stream: str
        text: str


def as_tool(box: SyncSandbox, **options: Any) -> Tool[Any]:
    """Return a tool that runs code in `box`; `options` are those of PythonTool."""
    tool = PythonTool(box, **options)
    if tool.streams and CustomEvent is None:
        raise ConfigError("this version of Pydantic AI has no custom events: leave out live=")

    async def run_python(context: RunContext[Any], code: str) -> Any:
        if not tool.streams:
            return _returned(await tool.arun(code))
        answer: Answer | None = None
        async with contextlib.aclosing(tool.stream(code)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Answer):
                    answer = piece
                    continue
                stream, text = piece
                with contextlib.suppress(UserError):  # called outside of a run
                    await context.emit(PythonOutputEvent(stream=stream, text=text))
        assert answer is not None
        return _returned(answer)

    facts: dict[str, object] = {"metadata": {"atoll_isolation": str(tool.isolation)}}
    if "metadata" not in inspect.signature(Tool).parameters:  # an older version
        facts = {}
    return Tool(run_python, takes_ctx=True, name=tool.name, description=tool.description, **facts)


def _returned(answer: Answer) -> Any:
    images = [
        BinaryContent(data=image.data, media_type=image.media_type) for image in answer.images
    ]
    if answer.failed:
        if ToolFailed is None:  # a version without it: the text has the traceback
            return f"Error: the code failed.\n{answer.text}"
        raise ToolFailed(answer.text)
    return ToolReturn(return_value=answer.text, content=images or None, metadata=answer)
