"""Converts events to plain dicts and back, for writer and reader. Unknown fields are kept."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from atoll.agent.trajectory.events import KINDS, Event, UnknownEvent
from atoll.agent.trajectory.fields import Usage, fits

if TYPE_CHECKING:
    from collections.abc import Mapping
    from dataclasses import Field

KIND = "event"
"""The key of an event's type; `kind` is a field of some events."""
_NAMES = {made: name for name, made in KINDS.items()}
_ALL: list[type[Event]] = [Event, *KINDS.values()]
_FIELDS: dict[type[Event], dict[str, Field[Any]]] = {
    made: {one.name: one for one in fields(made) if one.name != "extra"} for made in _ALL
}
_BASE = ("id", "parent", "run", "at")
"""Fields that are left out if they are empty."""


def to_dict(event: Event) -> dict[str, Any]:
    """Return the event as JSON data; from_dict returns an equal event."""
    kind = event.kind if isinstance(event, UnknownEvent) else _NAMES[type(event)]
    values = {one.name: getattr(event, one.name) for one in fields(event)}
    extra = values.pop("extra")
    if isinstance(event, UnknownEvent):
        values = {name: values[name] for name in _BASE if values[name]}
    told = {name: _told(one) for name, one in values.items() if one or name not in _BASE}
    return {KIND: kind, **told, **{name: extra[name] for name in extra if name not in told}}


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


def _values(made: type[Event], given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the constructor's arguments; None if one is missing or has another type."""
    values = {}
    for name, one in _FIELDS[made].items():
        if name in given:
            values[name] = _read(str(one.type), given[name])
            if not fits(str(one.type), values[name]):
                return None
        elif one.default is MISSING and one.default_factory is MISSING:
            return None
    return values


def _read(kind: str, value: Any) -> Any:
    if kind == "Usage" and isinstance(value, dict):
        parts = {name: value.get(name, 0) for name in ("input", "output", "cached")}
        return Usage(**parts) if all(fits("int", one) for one in parts.values()) else None
    return tuple(value) if kind.startswith("tuple") and isinstance(value, list) else value


def _base(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the valid ones of the fields that all events have."""
    known = {name: one for name, one in _FIELDS[Event].items() if name in given}
    return {name: given[name] for name, one in known.items() if fits(str(one.type), given[name])}
