"""What an operator returns: a type, a list, or fields with types; replies are checked by it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atoll.errors import ConfigError
from atoll.guest.shared.values import Opaque

if TYPE_CHECKING:
    from collections.abc import Mapping

TYPES: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool}
WORDS = {"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false"}
MAX_FIELDS = 30
_CLASS = re.compile(r"<class '(\w+)'>")
_JSON = re.compile(r"\{.*\}|\[.*\]", re.DOTALL)


class SchemaError(ValueError):
    """A value that does not fit; the message says how."""


@dataclass(frozen=True, slots=True)
class Schema:
    """`kind` is a name of TYPES, or `object` with fields; `many`: a list of them."""

    kind: str
    many: bool = False
    fields: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, returns: Any) -> Schema:
        """Return the schema of a type, its name, [type], or {name: type}."""
        if isinstance(returns, Schema):
            return returns
        if isinstance(returns, list) and len(returns) == 1:
            inner = cls.of(returns[0])
            return cls(inner.kind, many=True, fields=inner.fields)
        if isinstance(returns, dict) and 0 < len(returns) <= MAX_FIELDS:
            return cls("object", fields={str(name): _kind(one) for name, one in returns.items()})
        return cls(_kind(returns))

    @property
    def text(self) -> str:
        """The schema in the words of a prompt."""
        if self.kind == "object":
            shape = ", ".join(f'"{name}": {WORDS[kind]}' for name, kind in self.fields.items())
            one = f"an object {{{shape}}}"
        else:
            one = WORDS[self.kind]
        return f"a list, each of it {one}" if self.many else one

    @property
    def tokens(self) -> int:
        """About how many tokens a value has."""
        return (8 if self.kind != "object" else 8 * len(self.fields)) * (3 if self.many else 1)

    def check(self, value: Any) -> Any:
        """Return a value of this schema; SchemaError if it cannot be one."""
        if not self.many:
            return self._one(value)
        if not isinstance(value, list):
            raise SchemaError(f"it must be a list, not {value!r:.60}")
        return [self._one(one) for one in value]

    def _one(self, value: Any) -> Any:
        if self.kind != "object":
            return _converted(value, self.kind)
        if not isinstance(value, dict) or not value.keys() >= self.fields.keys():
            raise SchemaError(f"it must have {', '.join(self.fields)}, not {value!r:.60}")
        return {name: _converted(value[name], kind) for name, kind in self.fields.items()}


def parse_json(reply: str) -> Any:
    """Return the JSON in a reply, also within prose or a fence; SchemaError if there is none."""
    match = _JSON.search(reply)
    try:
        return json.loads(match[0] if match else reply)
    except (ValueError, RecursionError):
        raise SchemaError("it is not JSON") from None


def _kind(given: Any) -> str:
    """Return the name of a type; guest code may send the type itself, which crosses as its repr."""
    match = _CLASS.match(given.repr) if isinstance(given, Opaque) else None
    name = match[1] if match else getattr(given, "__name__", given)
    if name not in TYPES:
        raise ConfigError(
            f"returns must be {', '.join(TYPES)}, [one of them] or {{name: one of them}}, "
            f"not {given!r:.60}"
        )
    return str(name)


def _converted(value: Any, kind: str) -> Any:
    """Return a value as its type; a number may be written as text, and a whole one as 3.0."""
    if value is None or isinstance(value, (list, dict)):
        raise SchemaError(f"it must be {WORDS[kind]}, not {json.dumps(value)[:60]}")
    if kind == "str":
        return value if isinstance(value, str) else json.dumps(value)
    if kind == "bool":
        if isinstance(value, bool):
            return value
        said = {"true": True, "yes": True, "false": False, "no": False}.get(str(value).lower())
        if said is None:
            raise SchemaError(f"it must be true or false, not {value!r:.60}")
        return said
    try:
        number = float(str(value).replace(",", "")) if not isinstance(value, bool) else None
    except ValueError:
        number = None
    if number is None or (kind == "int" and number != int(number)):
        raise SchemaError(f"it must be {WORDS[kind]}, not {value!r:.60}")
    return int(number) if kind == "int" else number
