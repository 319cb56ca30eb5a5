"""Choose how a question is worked on: by context, question, model, memory, and the caller's wish.

    the context fits the window ──────────────────────────────────▶ direct
    a small model:   counting or comparing, and there are records ▶ scan ───▶ explore
                     else ────────────────────────────────────────▶ lookup ─▶ explore
    a larger model; documents, tools, or fields of an answer ─────▶ explore

What stands after an arrow follows if a strategy hands over.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from atoll.errors import ConfigError
from atoll.text.tokens import estimate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.agent.strategies.question import Asked
    from atoll.agent.strategies.types import Price, Strategy, Task
    from atoll.search.index import ContextIndex

AUTO, LOOP = "auto", "loop"
"""The planner's own choice; and the way of `explore` and `recurse`, as answers call it."""
STRATEGIES = ("direct", "lookup", "scan", "explore", "recurse")
FOLLOWED = {
    "direct": ("direct",),
    "scan": ("scan", "lookup", "explore"),
    "lookup": ("lookup", "explore"),
    LOOP: ("explore",),
    "explore": ("explore",),
    "recurse": ("recurse",),
}
"""The strategies that a way begins with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The strategy that comes first, why, and what follows if it finds nothing."""

    way: str
    """`direct`, `lookup`, `scan`, or `loop` for explore and recurse."""
    why: str
    may_show: bool = True
    """Whether the whole context may be shown: there are no documents beside it."""
    strategy: str = ""
    """How to look, if earlier runs tell."""
    hint: str = ""
    """What the model is told of earlier runs."""
    order: tuple[str, ...] = ()
    """The strategies by name: the first, and those that follow."""
    prices: Mapping[str, Price] = field(default_factory=dict)
    """What each strategy that fits would take."""

    @property
    def price(self) -> Price:
        """What the first strategy is expected to take."""
        return self.prices[self.order[0]]


def check_strategy(name: str) -> None:
    """Raise ConfigError if there is no strategy of this name."""
    if name not in (AUTO, *STRATEGIES):
        raise ConfigError(f"strategy must be one of {', '.join((AUTO, *STRATEGIES))}, not {name!r}")


def by_size(index: ContextIndex | None, threshold: int, *, documents: bool) -> Plan:
    """Return the way that the context's size speaks for: direct, or the loop."""
    if documents:
        return Plan(way=LOOP, why="there are documents to look into", may_show=False)
    if index is None:
        return Plan(way="direct", why="there is no context")
    if index.length > threshold * 8:
        why = f"{index.length:,} characters are more than {threshold:,} tokens"
        return Plan(way=LOOP, why=why)
    tokens = estimate(index.text(0, index.length))
    if tokens <= threshold:
        fits = f"about {tokens:,} tokens fit into one question ({threshold:,})"
        return Plan(way="direct", why=fits)
    return Plan(way=LOOP, why=f"about {tokens:,} tokens are more than {threshold:,}")


def by_question(plan: Plan, asked: Asked, model: str) -> Plan:
    """Return the way for a small model that the question speaks for, in place of the loop."""
    if plan.way != LOOP:
        return plan
    if asked.cues:
        cue = min(asked.cues)
        return replace(plan, way="scan", why=f"{plan.why}; {cue!r} asks for all records")
    return replace(plan, way="lookup", why=f"{plan.why}; {model} reads what a search finds")


async def priced(
    plan: Plan, task: Task, strategies: Mapping[str, Strategy], *, everything: bool = False
) -> Plan:
    """Return the plan with its order and the prices; without records, scan gives way to lookup.

    Strategies that are not in the order are priced without a search, unless `everything` is.
    """
    order = FOLLOWED[plan.way]
    prices = {name: await one.price(task) for name, one in strategies.items() if name in order}
    if prices.get("scan") is not None:
        order = tuple(name for name in order if name != "lookup")  # it cannot count
    elif "scan" in order:
        plan = replace(plan, why=f"{plan.why}; it has none that fit")
    order = tuple(name for name in order if prices[name] is not None) or FOLLOWED[LOOP]
    for name, one in strategies.items():
        if name not in prices:
            prices[name] = await one.price(task, quick=not everything)
    known = {name: price for name, price in prices.items() if price is not None}
    way = order[0] if order[0] in ("direct", "lookup", "scan") else LOOP
    return replace(plan, way=way, order=order, prices=known)


def check_cost(plan: Plan, most_usd: float | None) -> None:
    """Raise ConfigError if a plan is expected to cost more than so many dollars."""
    if most_usd is None:
        return
    usd, name = plan.price.usd, plan.order[0]
    if usd is None:
        raise ConfigError(
            "the price of the model is not known, so max_cost cannot hold: name it in the file of "
            "ATOLL_PRICES, or leave max_cost out"
        )
    if usd > most_usd:
        raise ConfigError(
            f"{name} would cost about ${usd:.4f}, more than max_cost, ${most_usd:g}: nothing was "
            "asked. Raise it, or choose another strategy"
        )
