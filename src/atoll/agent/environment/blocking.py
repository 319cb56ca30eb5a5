"""REPLEnvironment for blocking code: a typed shell around the async one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, Unpack

from atoll.agent.environment import core
from atoll.concurrency.portal import Portal
from atoll.files.base import blocking
from atoll.sandbox.blocking import SyncSandbox
from atoll.sandbox.context import warn_of_path
from atoll.text.name_hints import EnvironmentHints

if TYPE_CHECKING:
    from collections.abc import Collection

    from atoll.agent.environment.exploration import Exploration
    from atoll.agent.environment.options import EnvironmentOptions
    from atoll.agent.environment.research.graph import ResearchContext
    from atoll.agent.environment.tools.invocations import InvocationLog
    from atoll.agent.environment.turns import Final
    from atoll.agent.memory.learner import Advice
    from atoll.config import SandboxConfig
    from atoll.sandbox.tools import Tool
    from atoll.search.coverage import Coverage


class REPLEnvironment(EnvironmentHints):
    """A context, a sandbox beside it, and the tools that a model looks into it with."""

    def __init__(
        self, config: SandboxConfig | None = None, **options: Unpack[EnvironmentOptions]
    ) -> None:
        """`config` is an EnvironmentConfig; `options` are its fields, and override it."""
        warn_of_path(options.get("context"))
        self._run = Portal.shared().run
        self._inner = self._run(_make(config, options))

    @property
    def box(self) -> SyncSandbox:
        """The sandbox."""
        return SyncSandbox(self._inner.box)

    @property
    def session_id(self) -> str:
        """The name of this session, and of its folder of spilled output."""
        return self._inner.session_id

    @property
    def final(self) -> Final | None:
        """The answer, once one was given."""
        return self._inner.final

    @property
    def coverage(self) -> Coverage:
        """Which of the context was scanned so far, and which was shown to a model."""
        return self._inner.coverage

    @property
    def tools(self) -> tuple[Tool, ...]:
        """All functions that guest code may call on the host: the environment's, the caller's."""
        return self._inner.tools

    @property
    def invocations(self) -> InvocationLog:
        """The log of tool calls; its counts() are by name."""
        return self._inner.invocations

    @property
    def research(self) -> ResearchContext:
        """What was looked at, as a graph of calls and notes, up to the last turn."""
        return self._inner.research

    def tool_list(self, without: Collection[str] = ()) -> str:
        """Return the functions for a prompt, one a line, but for some by name."""
        return self._inner.tool_list(without)

    def start(self) -> Self:
        """Open the sandbox, with the tools in it."""
        self._run(self._inner.start())
        return self

    @property
    def exploration(self) -> Exploration:
        """How the question was explored so far: strategy, calls, token efficiency."""
        return self._inner.exploration

    @property
    def advice(self) -> Advice:
        """What the memory says of tasks like this one; `advice.prompt()` is text for a model."""
        return self._inner.advice

    execute = blocking(core.REPLEnvironment.execute)
    next_question = blocking(core.REPLEnvironment.next_question)
    reward = blocking(core.REPLEnvironment.reward)
    reset = blocking(core.REPLEnvironment.reset)
    get_state = blocking(core.REPLEnvironment.get_state)
    save = blocking(core.REPLEnvironment.save)
    close = blocking(core.REPLEnvironment.close)

    def __enter__(self) -> Self:
        self._run(self._inner.__aenter__())
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


async def _make(config: SandboxConfig | None, options: EnvironmentOptions) -> core.REPLEnvironment:
    return core.REPLEnvironment(config, **options)
