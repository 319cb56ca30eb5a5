"""The events of a run, as data: a class for each kind. The loop makes them, the writer keeps them.

Every event belongs to a call: to the run itself (`parent` None) or to the sub-call whose id is
`parent`. A sub-call is made by code: the turn that made it is the next CodeRan of the same parent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import Field


TEXT_CAP = 2_000
"""Characters of a text whose field has no cap of its own."""
DATA_CAP = 16_000
"""Characters in all texts and keys of one field of plain data."""
DEPTH_CAP, VALUE_CAP = 6, 2_000
NUMBER_CAP = 1e15
"""Largest plausible count of tokens, milliseconds or dollars."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens that a model read, wrote, and had read before (a part of `input`)."""

    input: int = 0
    output: int = 0
    cached: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cached=self.cached + other.cached,
        )


def cut(text: str, cap: int) -> str:
    """Return the text, or its start and how much is missing: at most `cap`, and idempotent."""
    if len(text) <= cap:
        return text
    room = max(cap - len(_cut_mark(len(text))), 0)
    return (text[:room] + _cut_mark(len(text) - room))[:cap]


def _cut_mark(missing: int) -> str:
    return f"\n[cut: {missing:,} more characters]"


def clamp(value: float) -> float:
    """Return the number, limited to NUMBER_CAP; 0 for NaN."""
    if isinstance(value, float) and math.isnan(value):
        return 0.0
    return value if _is_number(value) else (NUMBER_CAP if value > 0 else -NUMBER_CAP)


def fits(kind: str, value: Any) -> bool:
    """Return whether a value that was read has the type of its field's annotation."""
    return any(_CHECKS[part](value) for part in kind.split(" | "))


@dataclass(slots=True)
class Plain:
    """Makes JSON data of a value, within so many characters and values."""

    characters: int
    values: int = VALUE_CAP

    def of(self, value: Any, depth: int) -> Any:
        """Return the value as data; parts that are too long or too deep are marked as cut."""
        self.values -= 1
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, (int, float)):
            return value if _is_number(value) else "[cut: no plain number]"
        if not isinstance(value, (Mapping, list, tuple)):
            return self._text(value if isinstance(value, str) else f"[a {type(value).__name__}]")
        if not depth:
            return "[cut: too deep]"
        items = list(value)[: max(self.values, 0)]
        if not isinstance(value, Mapping):
            return [self.of(item, depth - 1) for item in items]
        return {self._text(str(key)): self.of(value[key], depth - 1) for key in items}

    def _text(self, text: str) -> str:
        kept = cut(text, max(self.characters, 0))
        self.characters -= len(kept)
        return kept


def _is_number(value: Any) -> bool:
    """Return whether it is a plausible number; compares only: an int may be too large for float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return -NUMBER_CAP <= value <= NUMBER_CAP  # false for nan


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and _is_number(value)


def _is_dicts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(item, dict) for item in value)


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int": _is_whole,
    "float": _is_number,
    "None": lambda value: value is None,
    "Data": lambda value: isinstance(value, dict),
    "tuple[Data, ...]": _is_dicts,
    "Usage": lambda value: isinstance(value, Usage),
}

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
        for declared in fields(self):
            value = kept = getattr(self, declared.name)
            cap = declared.metadata.get("cap", TEXT_CAP)
            if isinstance(value, str):
                kept = cut(value, cap)
            elif isinstance(value, (tuple, dict)) and value:
                made = Plain(max(cap, DATA_CAP)).of(value, DEPTH_CAP)
                kept = tuple(made) if isinstance(value, tuple) else made
            elif isinstance(value, float):
                kept = clamp(value)
            if kept is not value:
                object.__setattr__(self, declared.name, kept)


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
    """`direct`, `lookup`, `scan` or `loop`; another one follows if it hands over."""
    why: str = ""
    strategy: str = ""
    """The strategy that the memory of earlier runs recommends, if any."""
    prices: Data = field(default_factory=dict)
    """What each strategy was expected to take: calls, tokens, seconds, dollars."""


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
    """Guest code got its answer, or the reason why it is missing."""

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

KIND = "event"
"""The key of an event's type; `kind` is a field of some events."""
_NAMES = {made: name for name, made in KINDS.items()}
_ALL: list[type[Event]] = [Event, *KINDS.values()]
_FIELDS: dict[type[Event], dict[str, Field[Any]]] = {
    made: {known.name: known for known in fields(made) if known.name != "extra"} for made in _ALL
}
_BASE = ("id", "parent", "run", "at")
"""Fields that are left out if they are empty."""


def to_dict(event: Event) -> Data:
    """Return the event as JSON data; from_dict returns an equal event."""
    kind = event.kind if isinstance(event, UnknownEvent) else _NAMES[type(event)]
    values = {known.name: getattr(event, known.name) for known in fields(event)}
    extra = values.pop("extra")
    if isinstance(event, UnknownEvent):
        values = {name: values[name] for name in _BASE if values[name]}
    plain_values = {
        name: _told(value) for name, value in values.items() if value or name not in _BASE
    }
    return {
        KIND: kind,
        **plain_values,
        **{name: extra[name] for name in extra if name not in plain_values},
    }


def from_dict(data: Mapping[str, Any]) -> Event:
    """Return the event in `data`; an UnknownEvent if it is not valid, never an error."""
    given = dict(data)
    kind = given.pop(KIND) if isinstance(given.get(KIND), str) else ""
    made = KINDS.get(kind)
    values = {} if made is None else _values(made, given)
    if made is None or values is None:
        return UnknownEvent(kind=kind, **_base(given), extra=given)
    known = _FIELDS[made]
    return made(**values, extra={name: given[name] for name in given if name not in known})


def _told(value: Any) -> Any:
    if isinstance(value, Usage):
        return {"input": value.input, "output": value.output, "cached": value.cached}
    return list(value) if isinstance(value, tuple) else value


def _values(made: type[Event], given: Mapping[str, Any]) -> Data | None:
    """Return the constructor's arguments; None if one is missing or has another type."""
    values = {}
    for name, declared in _FIELDS[made].items():
        if name in given:
            values[name] = _read(str(declared.type), given[name])
            if not fits(str(declared.type), values[name]):
                return None
        elif declared.default is MISSING and declared.default_factory is MISSING:
            return None
    return values


def _read(kind: str, value: Any) -> Any:
    if kind == "Usage" and isinstance(value, dict):
        parts = {name: value.get(name, 0) for name in ("input", "output", "cached")}
        return Usage(**parts) if all(fits("int", part) for part in parts.values()) else None
    return tuple(value) if kind.startswith("tuple") and isinstance(value, list) else value


def _base(given: Mapping[str, Any]) -> Data:
    """Return the valid ones of the fields that all events have."""
    known = {name: declared for name, declared in _FIELDS[Event].items() if name in given}
    return {
        name: given[name]
        for name, declared in known.items()
        if fits(str(declared.type), given[name])
    }
