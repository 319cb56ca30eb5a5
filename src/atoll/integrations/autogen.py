"""run_python for AutoGen: AssistantAgent(tools=[as_tool(box)]).

Code that failed is a result with `is_error`. AutoGen has only text for a tool's result: `run`
returns the Answer, whose text the agent gets; figures and files are in it, and go to `on_answer`.
With LiveOutput, agent.run_stream() yields output while code runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.integrations.agent_tool import Answer, CodeFailedError, PythonTool
from atoll.integrations.common import missing

try:
    from autogen_agentchat.messages import ModelClientStreamingChunkEvent
    from autogen_core.tools import BaseStreamTool, BaseTool
    from pydantic import BaseModel, Field
except ImportError as exc:
    raise ImportError(missing("autogen", "autogen")) from exc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from autogen_core import CancellationToken

    from atoll.policy import Isolation
    from atoll.sandbox.blocking import SyncSandbox


class Arguments(BaseModel):
    """The arguments that a model gives."""

    code: str = Field(description="Python code to run")


class RunPython(BaseTool[Arguments, Answer]):  # type: ignore[misc]
    """The tool as AutoGen has it."""

    def __init__(self, tool: PythonTool) -> None:
        super().__init__(Arguments, Answer, tool.name, tool.description)
        self._tool = tool

    @property
    def isolation(self) -> Isolation:
        """How strongly the code is isolated from the host."""
        return self._tool.isolation

    async def run(self, args: Arguments, cancellation_token: CancellationToken) -> Answer:  # noqa: ARG002
        """Run code; AutoGen cancels the task itself. CodeFailedError if the code fails."""
        return _returned(await self._tool.arun(args.code))


class RunPythonStream(RunPython, BaseStreamTool[Arguments, Any, Answer]):  # type: ignore[misc]
    """The tool with live output.

    Its events are of a type that AutoGen itself has: a team refuses events of unknown types.
    """

    async def run_stream(
        self,
        args: Arguments,
        cancellation_token: CancellationToken,  # noqa: ARG002
    ) -> AsyncGenerator[ModelClientStreamingChunkEvent | Answer, None]:
        """Yield output while the code runs, then the answer."""
        async for piece in self._tool.stream(args.code):
            if isinstance(piece, Answer):
                yield _returned(piece)
            else:
                stream, text = piece
                facts = {"tool": self.name, "stream": stream}
                yield ModelClientStreamingChunkEvent(source=self.name, content=text, metadata=facts)


def _returned(answer: Answer) -> Answer:
    if answer.failed:
        raise CodeFailedError(answer)
    return answer


def as_tool(box: SyncSandbox, **options: Any) -> RunPython:
    """Return a tool that runs code in `box`; `options` are those of PythonTool."""
    tool = PythonTool(box, **options)
    return RunPythonStream(tool) if tool.streams else RunPython(tool)
