"""Describes the host's tools to a guest: name, parameters and docstring, as plain data.

The guest makes a function of the same signature from it, so that help() and inspect show what the
tool takes. Nothing of the tool itself crosses.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from atoll.guest.shared import values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.config import Handler
    from atoll.guest.shared.messages import Json

DESCRIPTION = "__atoll_description__"
"""Attribute of a function that stands for a tool of another process, with its description."""
MAX_DOC = 20_000
MAX_ANNOTATION = 500
MAX_PARAMETERS = 200
DEFAULT_ITEMS, DEFAULT_BYTES = 100, 2000
"""What a default may have to be shown; a larger one is shown as `...`."""


def describe_all(tools: Mapping[str, Handler]) -> list[Json]:
    """Return the descriptions of all tools, by name."""
    return [describe(name, tools[name]) for name in sorted(tools)]


def describe(name: str, tool: Handler) -> Json:
    """Return a tool's description; without parameters if Python does not know them."""
    known = getattr(tool, "__dict__", {}).get(DESCRIPTION)
    if isinstance(known, dict):
        return {**known, "name": name}
    result: Json = {"name": name}
    if doc := _doc(tool):
        result["doc"] = doc[:MAX_DOC]
    try:
        signature = inspect.signature(tool)
    except Exception:  # noqa: BLE001 - built-ins have none, and an object may have any __signature__
        return result
    if len(signature.parameters) <= MAX_PARAMETERS:
        result["parameters"] = [
            _parameter(parameter) for parameter in signature.parameters.values()
        ]
    if signature.return_annotation is not signature.empty:
        result["returns"] = _annotation(signature.return_annotation)
    return result


def _doc(tool: Any) -> str | None:
    while isinstance(tool, functools.partial):
        tool = tool.func
    doc = inspect.getdoc(tool)
    if doc is None and not inspect.isroutine(tool):
        doc = inspect.getdoc(type(tool).__call__)
    return doc if isinstance(doc, str) else None


def _parameter(given: inspect.Parameter) -> Json:
    result: Json = {"name": given.name, "kind": int(given.kind)}
    if given.annotation is not given.empty:
        result["annotation"] = _annotation(given.annotation)
    if given.default is not given.empty:
        try:
            result["default"] = values.encode(
                given.default, DEFAULT_ITEMS, DEFAULT_BYTES, strict=True
            )
        except (ValueError, TypeError, RecursionError):
            result["host_default"] = True
    return result


def _annotation(annotation: Any) -> str:
    try:
        text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    except Exception:  # noqa: BLE001 - an annotation may be any object, with any repr
        text = type(annotation).__name__
    return text[:MAX_ANNOTATION]
