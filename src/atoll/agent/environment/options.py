"""The configuration of an environment, and the same as keyword arguments."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atoll.config import (
    POSITIVE,
    SandboxConfig,
    expand_home,
    switch,
    variable,
)
from atoll.errors import ConfigError
from atoll.factory import SandboxOptions, merge
from atoll.policy import checked_keywords
from atoll.sandbox.context import Context, from_path, share_text, warn_of_path
from atoll.search.index import ContextIndex

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike
    from pathlib import Path

    from atoll.agent.environment.tools.taint import Approver
    from atoll.agent.memory.episodic import EpisodicMemory
    from atoll.agent.web import WebPolicy

Worker = Callable[[str], str | Awaitable[str]]


class EnvironmentOptions(SandboxOptions, total=False):
    """The fields of EnvironmentConfig, as keyword arguments."""

    documents: PathLike[str] | str | None
    worker: Worker | None
    web: WebPolicy | Mapping[str, Any] | Sequence[str] | None
    search_server: str | None
    submit_fields: Mapping[str, type] | None
    session_id: str | None
    task: str | None
    record_exploration: bool
    redact: bool
    parallel_tools: bool
    structured: bool
    tool_chain_mode: str | None
    parallel_mutations: bool | None
    work_tools: bool
    toolbox: bool
    approver: Approver | None
    on_delegate: Callable[..., Any] | None
    on_escalate: Callable[..., Any] | None
    semantic_references: bool
    memory: EpisodicMemory | PathLike[str] | str | None
    query_cache: PathLike[str] | str | None
    output_cap: int
    spill_dir: PathLike[str] | str | None
    max_output_preview: int
    max_grep_results: int
    require_exploration_before_final: bool
    min_exploration_calls: int
    use_toon_encoding: bool


CHAIN_MODES = ("seq", "dep")
CHAIN_MODE_VARIABLE = "ORCHESTRATOR_TOOL_CHAIN_MODE"
PARALLEL_VARIABLE = "ORCHESTRATOR_TOOL_CHAIN_PARALLEL_MUTATIONS"
GENERAL_TIMEOUT_MS = 120_000
"""Time of a cell where there is nothing to read: no context, no documents, no configuration."""
_NUMBER = {POSITIVE: True}


@checked_keywords("option")
@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentConfig(SandboxConfig):
    """Everything that `REPLEnvironment` takes: a sandbox's configuration, and these."""

    documents: Path | None = None
    """A host folder whose files peek, grep, list_dir, archive_open and the searches may read."""
    worker: Worker | None = None
    """A small model that summarises spilled output: a prompt in, a text out."""
    web: WebPolicy | None = None
    """What web_fetch may get: a WebPolicy, or a list of hosts; unset: nothing."""
    search_server: str | None = None
    """The URL of a NextPLAID server that searches; unset: the embedded index does."""
    submit_fields: Mapping[str, type] | None = None
    """Names and types of the fields that an answer must have."""
    session_id: str | None = None
    """Names the folder of spilled output; unset: a random one."""
    task: str | None = None
    """The question that is worked on: with a memory, similar ones are looked up."""
    record_exploration: bool = True
    """Whether a memory learns how this environment was explored; an RLM records its runs itself."""
    redact: bool = True
    """Whether secrets are taken out of what goes to a model."""
    parallel_tools: bool = True
    """Whether read-only calls with known arguments run side by side while their cell runs."""
    structured: bool = False
    """Whether a cell with several tool calls is checked and run as a chain."""
    tool_chain_mode: str | None = None
    """`seq`, or `dep` for waves of calls; unset: ORCHESTRATOR_TOOL_CHAIN_MODE, or `seq`."""
    parallel_mutations: bool | None = None
    """Whether waves may have several calls that change something;
    unset: ORCHESTRATOR_TOOL_CHAIN_PARALLEL_MUTATIONS, or not."""
    work_tools: bool = False
    """Whether the list for the model has run_shell and its like; they can be called in any case."""
    toolbox: bool = False
    """Whether the list for the model has calculate, math_simplify and the other deterministic
    tools; they can be called in any case."""
    approver: Approver | None = None
    """Asked before a tool with untrusted="ask" gets text of an untrusted source."""
    on_delegate: Callable[..., Any] | None = None
    """What delegate(task) calls, to hand a task to another agent; unset: it is refused."""
    on_escalate: Callable[..., Any] | None = None
    """What escalate(task) calls, to hand the task to a stronger agent; unset: it is refused."""
    semantic_references: bool = True
    """Whether the research tree has references by meaning; they need the extra `semantic`."""
    memory: EpisodicMemory | None = None
    """Earlier runs, or the file of them: recall(query) looks through it, and a run learns by it."""
    query_cache: Path | None = None
    """A file that keeps what map_query and its like computed; unset: as long as the environment."""
    output_cap: int = field(default=8192, metadata=_NUMBER)
    """Characters of a turn's output above which the model sees a summary; a file has the rest."""
    spill_dir: Path | None = None
    """The folder of these files; unset: a private one, deleted at the end."""
    max_output_preview: int = field(default=1500, metadata=_NUMBER)
    """Characters of a summary with its header and footer."""
    max_grep_results: int = field(default=100, metadata=_NUMBER)
    require_exploration_before_final: bool = False
    """Whether FINAL is refused before `min_exploration_calls` looks into the context."""
    min_exploration_calls: int = field(default=1, metadata=_NUMBER)
    use_toon_encoding: bool = True
    """Whether structured values are shown to the model as TOON where that is shorter."""

    def __post_init__(self, timeout_seconds: float | None, copied_timeout_ms: float | None) -> None:
        SandboxConfig.__post_init__(self, timeout_seconds, copied_timeout_ms)
        mode = self.tool_chain_mode or variable(CHAIN_MODE_VARIABLE).lower() or CHAIN_MODES[0]
        if mode not in CHAIN_MODES:
            raise ConfigError(f"no tool_chain_mode {mode!r}: use {' or '.join(CHAIN_MODES)}")
        object.__setattr__(self, "tool_chain_mode", mode)
        if self.parallel_mutations is None:
            parallel = bool(variable(PARALLEL_VARIABLE)) and switch(PARALLEL_VARIABLE)
            object.__setattr__(self, "parallel_mutations", parallel)
        for name, check in _CHECKS.items():
            if (given := getattr(self, name)) is not None:
                object.__setattr__(self, name, check(given))


def _web(given: Any) -> WebPolicy:
    from atoll.agent.web import WebPolicy  # noqa: PLC0415 - few fetch

    if isinstance(given, WebPolicy):
        return given
    if isinstance(given, Mapping):
        return WebPolicy(**given)
    if isinstance(given, (list, tuple)) and all(isinstance(item, str) for item in given):
        return WebPolicy(allow=tuple(given))
    raise ConfigError(f"web must be a list of hosts or an atoll.WebPolicy, not {given!r:.60}")


def _memory(given: Any) -> EpisodicMemory:
    from atoll.agent.memory.episodic import EpisodicMemory  # noqa: PLC0415 - few remember

    if isinstance(given, (str, os.PathLike)):
        return EpisodicMemory(given)
    if not isinstance(given, EpisodicMemory):
        raise ConfigError(f"memory must be a file or an EpisodicMemory, not {given!r:.60}")
    return given


def _submit_fields(given: Any) -> Mapping[str, type]:
    example = "submit_fields maps names to types, such as {'total': int, 'names': list}"
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(f"{example}; it is {given!r:.60}")
    for name, kind in given.items():
        if not isinstance(name, str) or not name.isidentifier() or not isinstance(kind, type):
            raise ConfigError(f"{example}, not {name!r:.40}: {kind!r:.40}")
    return given


def _path(given: Any) -> Path:
    return expand_home(given).absolute()


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "documents": _path,
    "spill_dir": _path,
    "query_cache": _path,
    "web": _web,
    "memory": _memory,
    "submit_fields": _submit_fields,
}
"""What checks an option that was given, and returns it as it is kept."""


REPLConfig = EnvironmentConfig
"""The same under another name."""


def configured(config: SandboxConfig | None, options: Mapping[str, Any]) -> EnvironmentConfig:
    """Return the configuration of an environment; its context is shared memory, or plain data.

    Documents and contexts have the long timeout of the configuration's default. An environment that
    is made without any of them, for general use, has GENERAL_TIMEOUT_MS.
    """
    warn_of_path(options.get("context"), above=2)
    made = merge(config, options, EnvironmentConfig)
    timed = {"timeout_ms", "timeout_seconds"} & set(options)
    if config is None and not timed and made.context is None and made.documents is None:
        made = made.with_values(timeout_ms=GENERAL_TIMEOUT_MS)
    return made.with_values(context=context_of(made.context))


def index_of(context: Any) -> ContextIndex | None:
    """Return the index over a context: over the readable form, if it is data."""
    if context is None:
        return None
    if isinstance(context, Context) and not context.describe()["json"]:
        return ContextIndex.of(context)
    return ContextIndex.of(_of_data(context.value if isinstance(context, Context) else context))


def context_of(context: Any) -> Any:
    """Return a Context for a text or a path, so that guest and host share it; else the value."""
    if isinstance(context, os.PathLike):
        return from_path(context)
    return share_text(context) if isinstance(context, str) else context


def _of_data(value: Any) -> Context:
    return Context.from_text(json.dumps(value, indent=1, ensure_ascii=False, default=str))
