"""JSON schemas of tools: made from a function's signature, turned into one, and checked.

A tool of Python has annotations; one of an MCP server or of LangChain has a schema. Either is shown
as the other, so that guest code calls both as functions and an API can list both as schemas.
"""

from __future__ import annotations

import inspect
import keyword
import types
import typing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from atoll.guest.shared.messages import Names

_TYPES: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    tuple: "array",
    dict: "object",
    type(None): "null",
}
_ACCEPTED: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (float, int),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (dict,),
    "null": (type(None),),
}
"""Python types that a value of a JSON type may have, the usual one first."""
Schema = dict[str, Any]
"""A JSON schema."""
_SIMPLE = ("string", "integer", "number", "boolean")
MORE = "more"
"""Takes the arguments of a tool whose names are not Python names."""
MAX_OPTIONS, MAX_OPTION = 12, 40
"""Values of an enumeration that are shown, and characters of one."""
DEEPEST = 20
"""Levels of a value that are checked; a schema may refer to itself."""


def hints_of(function: Callable[..., Any]) -> Names:
    """Return the annotations of a function as types; none if one of them cannot be resolved."""
    try:
        return typing.get_type_hints(function)
    except Exception:  # noqa: BLE001 - an annotation may be any text
        return {}


def of_function(function: Callable[..., Any]) -> Schema:
    """Return the schema of a function's parameters; of one without a signature, any object."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {"type": "object"}
    hints, required = hints_of(function), []
    properties: dict[str, Schema] = {}
    schema: Schema = {"type": "object", "properties": properties}
    for parameter in parameters:
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            continue
        properties[parameter.name] = of_annotation(hints.get(parameter.name))
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif parameter.default is None or isinstance(parameter.default, str | int | float):
            properties[parameter.name] |= {"default": parameter.default}
    if required:
        schema["required"] = required
    return schema


def of_annotation(kind: Any) -> Schema:
    """Return the schema of an annotation; of one that JSON does not know, any value."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, types.UnionType) or origin is typing.Union:
        return {"anyOf": [of_annotation(member) for member in args]}
    if origin is typing.Literal:
        return {"enum": list(args)}
    if kind is None:
        return {}
    name = _TYPES.get(origin or kind)
    if name == "array" and args:
        return {"type": name, "items": of_annotation(args[0])}
    if name == "object" and len(args) == 2:
        return {"type": name, "additionalProperties": of_annotation(args[1])}
    return {} if name is None else {"type": name}


def of_result(function: Callable[..., Any]) -> Schema:
    """Return the schema of what a function returns; any value if it does not say."""
    hints = hints_of(function)
    if "return" not in hints:
        return {}
    return of_annotation(type(None) if hints["return"] is None else hints["return"])


def signature_of(schema: Mapping[str, Any]) -> inspect.Signature:
    """Return a signature for a schema: required parameters first, each by position or by name.

    Properties whose names are not Python names are passed as `**more`. A schema may come from a
    stranger: parts that are not what JSON schema has there are left out.
    """
    given, listed = schema.get("properties"), schema.get("required")
    properties = given if isinstance(given, dict) else {}
    required = (
        [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    )
    usable = [name for name in properties if _is_parameter(name)]
    parameters = [
        _parameter(name, properties[name], is_required=name in required)
        for name in sorted(usable, key=lambda name: name not in required)
    ]
    if len(usable) < len(properties):
        parameters.append(inspect.Parameter(MORE, inspect.Parameter.VAR_KEYWORD))
    return inspect.Signature(parameters)


def named_arguments(
    signature: inspect.Signature, args: Iterable[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by the names that a schema has for them."""
    given = dict(signature.bind(*args, **kwargs).arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            given |= given.pop(name, {})
    return given


def _is_parameter(name: Any) -> bool:
    return (
        isinstance(name, str)
        and name.isidentifier()
        and not keyword.iskeyword(name)
        and (name not in (MORE, "__debug__"))
    )


def _parameter(name: str, schema: Any, *, is_required: bool) -> inspect.Parameter:
    known = schema if isinstance(schema, dict) else {}
    return inspect.Parameter(
        name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=inspect.Parameter.empty if is_required else known.get("default"),
        annotation=_annotation(known),
    )


def _annotation(schema: Mapping[str, Any]) -> Any:
    """Return a type for a schema, as help() shows it; none if there is no short one."""
    options = schema.get("enum")
    if isinstance(options, list) and 0 < len(options) <= MAX_OPTIONS and _are_short(options):
        return typing.Literal[tuple(options)]
    kinds = _ACCEPTED.get(str(schema.get("type")), (type(None),))
    items = schema.get("items")
    if kinds[0] is list and isinstance(items, dict) and items.get("type") in _SIMPLE:
        return types.GenericAlias(list, (_ACCEPTED[items["type"]][0],))
    return inspect.Parameter.empty if kinds[0] is type(None) else kinds[0]


def _are_short(options: list[Any]) -> bool:
    return all(isinstance(option, str) and len(option) <= MAX_OPTION for option in options)


def check(value: Any, schema: Any, where: str, defs: Any = None, depth: int = 0) -> None:
    """Raise TypeError or ValueError, which names the place, if a value does not fit a schema.

    Known are type, enum, const, anyOf, oneOf, properties, required, items, minimum, maximum and
    references to $defs; other words of a schema are left to the tool.
    """
    if not isinstance(schema, dict) or depth > DEEPEST:
        return
    defs = schema.get("$defs", defs)
    if isinstance(ref := schema.get("$ref"), str):
        check(value, (defs or {}).get(ref.rpartition("/")[2]), where, defs, depth + 1)
    for words in ("anyOf", "oneOf"):
        if options := schema.get(words):
            _check_any(value, options, where, defs, depth)
    _check_type(value, schema.get("type"), where)
    if "enum" in schema and value not in schema["enum"]:
        raise ValueError(f"{where} must be one of {schema['enum']!r:.200}, not {value!r:.50}")
    if "const" in schema and value != schema["const"]:
        raise ValueError(f"{where} must be {schema['const']!r:.50}, not {value!r:.50}")
    _check_range(value, schema, where)
    _check_parts(value, schema, where, defs, depth)


def _check_any(value: Any, options: Any, where: str, defs: Any, depth: int) -> None:
    wrong = None
    for option in options:
        try:
            return check(value, option, where, defs, depth + 1)
        except (TypeError, ValueError) as exc:
            wrong = exc
    if wrong is not None:
        raise wrong
    return None


def _check_type(value: Any, kind: Any, where: str) -> None:
    kinds = [kind] if isinstance(kind, str) else kind if isinstance(kind, list) else []
    known = [kind for kind in kinds if kind in _ACCEPTED]
    if known and not any(_is(value, kind) for kind in known):
        raise TypeError(f"{where} must be {' or '.join(known)}, not {type(value).__name__}")


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _ACCEPTED[kind])


def _check_range(value: Any, schema: Mapping[str, Any], where: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    least, most = schema.get("minimum"), schema.get("maximum")
    if isinstance(least, int | float) and value < least:
        raise ValueError(f"{where} must be at least {least}, not {value!r:.50}")
    if isinstance(most, int | float) and value > most:
        raise ValueError(f"{where} must be at most {most}, not {value!r:.50}")


def _check_parts(value: Any, schema: Mapping[str, Any], where: str, defs: Any, depth: int) -> None:
    if isinstance(value, dict):
        properties, needed = schema.get("properties"), schema.get("required")
        properties = properties if isinstance(properties, dict) else {}
        needed = needed if isinstance(needed, list) else []
        if missing := [name for name in needed if name not in value]:
            raise TypeError(f"{where} lacks {', '.join(map(repr, missing))}")
        if schema.get("additionalProperties") is False and (extra := set(value) - set(properties)):
            raise TypeError(f"{where} has no {', '.join(sorted(map(repr, extra)))}")
        for name, one in properties.items():
            if name in value:
                check(value[name], one, f"{where}.{name}", defs, depth + 1)
    elif isinstance(value, list | tuple) and isinstance(schema.get("items"), dict):
        for at, item in enumerate(value):
            check(item, schema["items"], f"{where}[{at}]", defs, depth + 1)
