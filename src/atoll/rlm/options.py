"""The configuration of runs, and the same as keyword arguments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atoll.environment.options import EnvironmentOptions, split
from atoll.errors import ConfigError
from atoll.policy import check_positive
from atoll.rlm.model_calls import MARGIN, MAX_TOKENS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.rlm.models.types import Model

DIRECT_TOKENS = 4_000
HISTORY_TOKENS = 24_000
QUERY_CHARACTERS = 100_000
CHARACTERS_PER_TOKEN = 3
LEAST_WINDOW = 2_048
"""The prompt alone has a thousand."""
OUTPUT_CAP, PREVIEW = 8_192, 1_500
OURS = {"context", "on_llm_query", "on_rlm_query", "max_concurrency"}
"""Options of REPLEnvironment that a run has its own for."""


class RLMOptions(EnvironmentOptions, total=False):
    """The fields of RLMConfig and the options of REPLEnvironment, as keyword arguments."""

    max_depth: int
    direct_tokens: int
    history_tokens: int
    max_tokens: int
    temperature: float | None
    concurrency: int
    query_characters: int
    examples: bool | None
    instructions: str | None
    system_prompt: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RLMConfig:
    """The settings of runs; the same for every question."""

    model: Model
    sub_model: Model
    max_depth: int = 1
    """Runs within runs: 0 makes every rlm_query an llm_query."""
    direct_tokens: int = DIRECT_TOKENS
    """A context of at most so many tokens is shown to the model as it is."""
    history_tokens: int = HISTORY_TOKENS
    """Of the conversation: beyond that, what old cells printed is cut."""
    max_tokens: int = MAX_TOKENS
    """Of one reply."""
    temperature: float | None = None
    """Of every reply; unset: as the model likes it best."""
    concurrency: int = 32
    """Calls to models at one time, over all depths; and runs at each depth."""
    query_characters: int = QUERY_CHARACTERS
    """About how much text fits into one llm_query: the model is told so."""
    examples: bool | None = None
    """Whether an example comes first; unset: for small models, by their names."""
    instructions: str | None = None
    """Instructions of the caller, at the end of the system prompt."""
    system_prompt: str | None = None
    """A system prompt instead of Atoll's; `{tools}` in it becomes the list of functions."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Options of REPLEnvironment: backend, policy, documents, web ..."""

    def model_at(self, depth: int) -> Model:
        """Who works on a question: the sub-model on one that a run asks."""
        return self.sub_model if depth else self.model

    def __post_init__(self) -> None:
        for name in (
            "direct_tokens",
            "history_tokens",
            "max_tokens",
            "concurrency",
            "query_characters",
        ):
            check_positive(name, getattr(self, name))
        if not isinstance(self.max_depth, int) or self.max_depth < 0:
            raise ConfigError(f"max_depth must be 0 or more, not {self.max_depth!r}")
        if taken := OURS & set(self.environment):
            raise ConfigError(f"{min(taken)} is not for a run's sandboxes: the run itself sets it")
        split(None, self.environment)  # a wrong option is told of now, not in the midst of a run


def fitting(window: int | None) -> dict[str, int]:
    """RLMConfig for a window of so many tokens; nothing to set for one that nobody speaks of."""
    if window is None:
        return {}
    if window < LEAST_WINDOW:
        raise ConfigError(f"a window must have at least {LEAST_WINDOW:,} tokens, not {window:,}")
    reply = min(MAX_TOKENS, window // 8)
    room = int((window - reply) / MARGIN)
    cap = min(OUTPUT_CAP, room // 2)  # characters: two observations are never cut
    return {
        "max_tokens": reply,
        "history_tokens": min(HISTORY_TOKENS, room),
        "direct_tokens": min(DIRECT_TOKENS, room // 2),
        "query_characters": room * CHARACTERS_PER_TOKEN,
        "output_cap": cap,
        "max_output_preview": min(PREVIEW, cap),
    }
