"""run_python for AutoGen: AssistantAgent(tools=[as_tool(box)]).

With LiveOutput, agent.run_stream() yields output while code runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.integrations.agent_tool import ANSWER, PythonTool
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


class RunPython(BaseTool[Arguments, str]):  # type: ignore[misc]
    """The tool as AutoGen has it."""

    def __init__(self, tool: PythonTool) -> None:
        super().__init__(Arguments, str, tool.name, tool.description)
        self._tool = tool

    @property
    def isolation(self) -> Isolation:
        """How strongly the code is isolated from the host."""
        return self._tool.isolation

    async def run(self, args: Arguments, cancellation_token: CancellationToken) -> str:  # noqa: ARG002
        """Run code; AutoGen cancels the task itself."""
        return await self._tool.arun(args.code)


class RunPythonStream(RunPython, BaseStreamTool[Arguments, Any, str]):  # type: ignore[misc]
    """The tool with live output.

    Its events are of a type that AutoGen itself has: a team refuses events of unknown types.
    """

    async def run_stream(
        self,
        args: Arguments,
        cancellation_token: CancellationToken,  # noqa: ARG002
    ) -> AsyncGenerator[ModelClientStreamingChunkEvent | str, None]:
        """Yield output while the code runs, then the answer."""
        async for stream, text in self._tool.stream(args.code):
            if stream == ANSWER:
                yield text
            else:
                facts = {"tool": self.name, "stream": stream}
                yield ModelClientStreamingChunkEvent(source=self.name, content=text, metadata=facts)


def as_tool(box: SyncSandbox, **options: Any) -> RunPython:
    """Return a tool that runs code in `box`; `options` are those of PythonTool."""
    tool = PythonTool(box, **options)
    return RunPythonStream(tool) if tool.streams else RunPython(tool)
