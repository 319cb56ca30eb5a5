"""The events of a run, as data: a class for each kind. The loop makes them, the writer keeps them.

Every event belongs to a call: to the run itself (`parent` None) or to the sub-call whose id is
`parent`. A sub-call is made by code: the turn that made it is the next CodeRan of the same parent.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any

from atoll.agent.trajectory.fields import DATA_CAP, TEXT_CAP, Usage, clamp, cut, plain

Data = dict[str, Any]

ID_CAP = 64
MESSAGES_CAP = 1_000_000
"""Characters of the messages of one call."""
NODES_CAP = 60_000
"""Characters of the nodes of one graph."""
LONG = 64_000
"""Characters of a code, an observation, a model's text."""


def _text(cap: int = LONG, **options: Any) -> Any:
    return field(metadata={"cap": cap}, **options)


@dataclass(frozen=True, slots=True)
class Event:
    """One event; the writer fills in id, run, at and elapsed if they are empty."""

    _: KW_ONLY
    id: str = _text(ID_CAP, default="")
    """Short, unique in the run."""
    parent: str | None = _text(ID_CAP, default=None)
    run: str = _text(ID_CAP, default="")
    at: str = _text(ID_CAP, default="")
    """ISO 8601, UTC."""
    elapsed_ms: float = 0.0
    """Milliseconds since the run began, by the monotonic clock."""
    depth: int = 0
    extra: Data = field(default_factory=dict)
    """Fields that this version does not know: kept, and shown unchanged."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            kept = _bounded(value, one.metadata.get("cap", TEXT_CAP))
            if kept is not value:
                object.__setattr__(self, one.name, kept)


def _bounded(value: Any, cap: int) -> Any:
    if isinstance(value, str):
        return cut(value, cap)
    if isinstance(value, tuple):
        return tuple(plain(list(value), max(cap, DATA_CAP)))
    if isinstance(value, dict):
        return plain(value)
    return clamp(value) if isinstance(value, float) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """A question is asked of a context."""

    question: str = _text()
    model: str
    sub_model: str = ""
    context: Data = field(default_factory=dict)
    """Facts about the context without its text: `length`, `kind`, `name`."""
    budget: Data = field(default_factory=dict)
    atoll_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned(Event):
    """How the run will work on the question."""

    way: str
    """`loop`, or `direct` if the context fits into one prompt."""
    why: str = ""
    strategy: str = ""
    """The strategy that the memory of earlier runs recommends, if any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAsked(Event):
    """A model is about to answer."""

    call: str = _text(ID_CAP)
    model: str
    messages_count: int = 0
    input_tokens: int = 0
    """Estimated."""
    repeated: int = 0
    """Messages at the beginning that are the same as in the loop's previous call."""
    messages: tuple[Data, ...] = field(default=(), metadata={"cap": MESSAGES_CAP})
    """The messages after them: role and content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswered(Event):
    """A model has answered."""

    call: str = _text(ID_CAP)
    text: str = _text()
    usage: Usage = field(default_factory=Usage)
    usd: float | None = None
    """None: the price is not known."""
    duration_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeRan(Event):
    """A model's code ran in the sandbox: one turn."""

    turn: int
    code: str = _text()
    observation: str = _text(default="")
    """What the model is shown of the output."""
    outcome: str = "ok"
    """A value of atoll.Outcome."""
    duration_ms: float = 0.0
    isolation: str = ""
    spilled: str | None = None
    """The file with the whole output, if the observation is a summary of it."""
    repeated: bool = False
    """Whether an earlier turn ran the same code."""
    calls: tuple[Data, ...] = ()
    """The tool calls of the turn: `tool`, `caller_type`, `chain_id`, `chain_index`, `outcome`."""
    network: tuple[Data, ...] = ()
    """Requests of the code: `place`, `method`, `path`, `status`, `sent`, `received`, `refused`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubcallStarted(Event):
    """Guest code asks a model."""

    call: str = _text(ID_CAP)
    kind: str
    """`llm_query`, or `rlm_query`: a run of its own, whose events have this call as parent."""
    prompt: str = _text(8_000)
    context: Data | None = None
    shared_with: str | None = _text(ID_CAP, default=None)
    """The identical call that this one takes its answer from: it costs nothing itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubcallEnded(Event):
    """Guest code got its answer, or the reason why there is none."""

    call: str = _text(ID_CAP)
    answer: str = _text(8_000, default="")
    ended: str = "answered"
    """answered, forced, refused or unanswered."""
    error: str | None = None
    usage: Usage = field(default_factory=Usage)
    """Including all sub-calls below it."""
    usd: float | None = None
    downgraded: bool = False
    """An rlm_query that was answered as an llm_query: the depth or the budget was used up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetWarned(Event):
    """Most of a budget is used."""

    what: str
    used: float
    limit: float
    share: float
    """From 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(Event):
    """A request was refused."""

    what: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored(Event):
    """How the context was explored: the strategy, its cost, and the graph of calls."""

    strategy: str
    """`scan`, `search`, `delegated`, `mixed` or `none`."""
    calls: Data = field(default_factory=dict)
    """How often each exploration tool was called."""
    exploration_tokens: int = 0
    result_tokens: int = 0
    token_efficiency: float = 0.0
    """Result tokens per exploration token."""
    nodes: tuple[Data, ...] = field(default=(), metadata={"cap": NODES_CAP})
    """Calls in order: `id`, `call`, `found`, `parent`, `references`, `similar`, `status`."""
    left_out: int = 0
    """Number of earlier nodes that are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalGiven(Event):
    """The answer: of the run, or of the sub-call that it belongs to."""

    how: str
    """FINAL, FINAL_VAR, SUBMIT, answer, or `text` where the model answered without code."""
    text: str = _text()
    evidence: tuple[Data, ...] = ()
    """Quotes that were checked: `quote`, `found`, `start`, `end`, `line`."""
    coverage: Data = field(default_factory=dict)
    """`length`, `scanned_share`, `shown_share`, and `map`: cells of the context, from its start."""
    ended: str = "answered"
    """answered, forced, refused or unanswered."""
    reason: str = ""
    """Why it did not end as answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(Event):
    """The run has ended."""

    outcome: str
    """answered, forced, refused, unanswered, failed or cancelled."""
    usd: float | None = None
    usage: Usage = field(default_factory=Usage)
    calls: int = 0
    seconds: float = 0.0
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownEvent(Event):
    """An event that this version cannot read: newer, or invalid. `extra` has all its fields."""

    kind: str = ""


KINDS: dict[str, type[Event]] = {
    "run_started": RunStarted,
    "planned": Planned,
    "model_asked": ModelAsked,
    "model_answered": ModelAnswered,
    "code_ran": CodeRan,
    "subcall_started": SubcallStarted,
    "subcall_ended": SubcallEnded,
    "budget_warned": BudgetWarned,
    "refused": Refused,
    "explored": Explored,
    "final_given": FinalGiven,
    "run_ended": RunEnded,
}
"""The classes of events, by their name in a file under `event`."""
