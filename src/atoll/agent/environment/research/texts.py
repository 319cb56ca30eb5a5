"""What the invocation log keeps of a call's arguments and of its result: short, as plain data."""

from __future__ import annotations

import hashlib
import inspect
import re
from typing import TYPE_CHECKING, Any

from atoll.text.tokens import estimate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LONGEST_ARGUMENT = 500
LONGEST_RESULT = 700
"""More than is ever shown: a secret that is cut here is cut off whole when a node is shortened."""
MOST_ARGUMENTS = 12
COUNTED = 4_096
"""Characters of a result whose tokens are counted; of a longer one, in proportion."""
HASHED = 1 << 18
"""Characters of a result that its digest covers, beside its length."""
LARGEST_OWN = 1 << 40
"""Characters that guest code may say a result from its own files has."""
_EXCEPTION = re.compile(r"[A-Za-z]\w{0,60}")
MOST_ITEMS = 200
"""Items of a list that its text has: max_grep_results is 100."""


def arguments_of(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a function is called with, by the names of its parameters, cut.

    What equals its default is left out: `peek(n=100)`, not `peek(n=100, start=0)`.
    """
    try:
        signature = inspect.signature(function)
        bound = signature.bind(*args, **kwargs).arguments
        defaults = {name: one.default for name, one in signature.parameters.items()}
        given = {name: one for name, one in bound.items() if not _is_same(one, defaults[name])}
    except (TypeError, ValueError):  # wrong arguments, or a function without a signature
        given = {**{str(at): one for at, one in enumerate(args)}, **kwargs}
    return {name: _cut(one) for name, one in list(given.items())[:MOST_ARGUMENTS]}


def result_fields(answer: Any) -> dict[str, Any]:
    """Return the fields of an Invocation that tell of its result."""
    text = result_text(answer)
    hashed = f"{len(text)}:{text[:HASHED]}".encode("utf-8", "surrogatepass")
    return {
        "found": text[:LONGEST_RESULT],
        "found_tokens": _tokens(text),
        "digest": hashlib.blake2b(hashed, digest_size=8).hexdigest(),
    }


def reported_fields(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same fields of what guest code says that it found in a file of its own."""
    if failed := told.get("failed"):
        return {"outcome": failed if _EXCEPTION.fullmatch(str(failed)) else "OSError"}
    text, size = str(told["text"])[:HASHED], max(0, min(int(told["size"]), LARGEST_OWN))
    found = result_fields(text)
    if size > len(text) > 0:
        found["found_tokens"] = found["found_tokens"] * size // len(text)
    return found


def result_text(answer: Any) -> str:
    """Return a result as text: of hits one a line, of anything that is not text as it prints."""
    if answer is None:
        return ""
    if isinstance(answer, str):
        return answer
    if isinstance(answer, dict):
        told = next(
            (answer[name] for name in ("text", "hits", "names", "members") if name in answer), None
        )
        return result_text(told) if told is not None else _fields(answer)
    if isinstance(answer, (list, tuple)):
        return "\n".join(map(_item, answer[:MOST_ITEMS]))
    return repr(answer) if isinstance(answer, (int, float, bool)) else type(answer).__name__


def _is_same(value: Any, default: Any) -> bool:
    """Return whether an argument is its parameter's default, of plain values."""
    plain = default is None or isinstance(default, (str, int, float))
    return plain and type(value) is type(default) and value == default


def _item(one: Any) -> str:
    if isinstance(one, dict):
        return str(one["text"]) if "text" in one else _fields(one)
    return str(_cut(one))


def _fields(data: Mapping[Any, Any]) -> str:
    pairs = list(data.items())[:MOST_ARGUMENTS]
    return ", ".join(f"{_cut(name)}: {_cut(value)}" for name, value in pairs)


def _cut(value: Any) -> Any:
    """Return a number as it is, the beginning of a text, the type and length of anything else."""
    if isinstance(value, str):
        return value[:LONGEST_ARGUMENT]
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else "a large number"
    size = f" of {len(value)}" if hasattr(value, "__len__") else ""
    return f"{type(value).__name__}{size}"


def _tokens(text: str) -> int:
    if len(text) <= COUNTED:
        return estimate(text)
    return estimate(text[:COUNTED]) * len(text) // COUNTED
