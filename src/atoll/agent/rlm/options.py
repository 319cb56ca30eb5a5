"""The configuration of runs, and the same as keyword arguments."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atoll.agent.environment.options import EnvironmentConfig, EnvironmentOptions
from atoll.agent.rlm.budget import Budget
from atoll.agent.rlm.model_calls import MARGIN, MAX_TOKENS
from atoll.agent.rlm.prompts import check_profile
from atoll.agent.strategies.planner import AUTO, check_strategy
from atoll.errors import ConfigError
from atoll.factory import merge
from atoll.policy import check_keys, check_positive, checked_keywords

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.agent.rlm.budget import AnyBudget

DIRECT_TOKENS = 4_000
HISTORY_TOKENS = 24_000
QUERY_CHARACTERS = 100_000
CHARACTERS_PER_TOKEN = 3
LEAST_WINDOW = 2_048
"""The prompt alone has a thousand."""
OUTPUT_CAP, PREVIEW = 8_192, 1_500
OURS = ("context", "on_llm_query", "on_rlm_query", "max_concurrency")
"""Fields of EnvironmentConfig that a run sets itself."""
POSITIVE = (
    "direct_tokens",
    "history_tokens",
    "max_tokens",
    "concurrency",
    "query_characters",
    "max_cost",
)


class RLMOptions(EnvironmentOptions, total=False):
    """The fields of RLMConfig and of its EnvironmentConfig, as keyword arguments."""

    budget: AnyBudget
    strategy: str
    max_cost: float | None
    max_depth: int
    direct_tokens: int
    history_tokens: int
    max_tokens: int
    temperature: float | None
    concurrency: int
    query_characters: int
    profile: str | None
    examples: bool | None
    instructions: str | None
    system_prompt: str | None


@checked_keywords("option")
@dataclass(frozen=True, slots=True, kw_only=True)
class RLMConfig:
    """The settings of runs; the same for every question."""

    budget: Budget = field(default_factory=Budget)
    """The limits of one run: dollars, a dict of limits, or a Budget."""
    strategy: str = AUTO
    """How questions are worked on: direct, lookup, scan, explore, recurse; auto: the planner
    chooses."""
    max_cost: float | None = None
    """Dollars: a question that is expected to cost more is refused before anything is asked."""
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
    profile: str | None = None
    """How models are spoken to: "small", "medium" or "large"; unset: by their names."""
    examples: bool | None = None
    """Whether an example comes first; unset: for small models, by their names."""
    instructions: str | None = None
    """Instructions of the caller, at the end of the system prompt."""
    system_prompt: str | None = None
    """A system prompt instead of Atoll's; `{tools}` in it becomes the list of functions."""
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    """The sandboxes of runs: backend, policy, documents, web ..."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "budget", Budget.of(self.budget))
        check_profile(self.profile)
        check_strategy(self.strategy)
        for name in POSITIVE:
            check_positive(name, getattr(self, name))
        if not isinstance(self.max_depth, int) or self.max_depth < 0:
            raise ConfigError(f"max_depth must be 0 or more, not {self.max_depth!r}")
        for name in OURS:
            if (
                getattr(self.environment, name)
                != EnvironmentConfig.__dataclass_fields__[name].default
            ):
                raise ConfigError(f"{name} is not for a run's sandboxes: the run itself sets it")


def configured(
    config: RLMConfig | None, window: int | None, options: Mapping[str, Any]
) -> RLMConfig:
    """Return the configuration that a window and keyword arguments make of another."""
    check_keys("option", options, RLMOptions.__annotations__)
    if not isinstance(config, RLMConfig | None):
        raise ConfigError(
            f"not an RLMConfig: {config!r:.60}. Write options by name, such as max_depth=1"
        )
    given = {**({} if window is None else fitting(window)), **options}
    own: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for name, value in given.items():
        if name in RLMConfig.__dataclass_fields__:
            own[name] = value
        else:
            rest[name] = value
    if config is None:
        return RLMConfig(environment=merge(None, rest, EnvironmentConfig), **own)
    environment = merge(config.environment, rest, EnvironmentConfig)
    return dataclasses.replace(config, environment=environment, **own)


def fitting(window: int) -> dict[str, int]:
    """Return the fields of RLMConfig for a window of so many tokens."""
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
