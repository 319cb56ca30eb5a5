"""Tool: a host function that guest code may call, with what a model and the host know of it.

    @atoll.tool(read_only=True)
    def population(city: str) -> int:
        "Return how many people live in a city."

The environment's own functions are tools too: environment/registry holds all of them.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from atoll.errors import ConfigError
from atoll.signatures import DESCRIPTION, describe

if TYPE_CHECKING:
    from collections.abc import Iterable

Function = Callable[..., Any]
CALLERS = ("code", "chain")
"""Who may call a tool: the code of a cell, or a chain of calls that the host runs by itself."""
COSTS = ("free", "model", "network")
_PLAIN = (str, int, float, bool, list, dict)


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A function that guest code may call by its name. It is called as the function is."""

    name: str
    function: Function
    description: str = ""
    """What it does; unset: the function's docstring. A prompt shows the first line."""
    parameters: tuple[Mapping[str, Any], ...] | None = None
    """Name, kind, annotation and default of each; unset: those of the function's signature."""
    usage: str = ""
    """How a prompt shows a call, such as `grep(pattern)`; unset: the name with its parameters."""
    read_only: bool = False
    """Whether a call changes nothing, so that calls may be made side by side and again."""
    allowed_callers: tuple[str, ...] = ("code",)
    cost: str = "free"
    """`free`, `model` if a call asks a model, `network` if it leaves this machine."""
    explores: bool = False
    """Whether a call that finds something counts as a look into the context."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise ConfigError(f"a tool's name must be a Python name, not {self.name!r:.60}")
        if not callable(self.function):
            raise ConfigError(f"the function of the tool {self.name} cannot be called")
        if wrong := [one for one in self.allowed_callers if one not in CALLERS]:
            raise ConfigError(f"no caller {wrong[0]!r} of a tool: use one of {', '.join(CALLERS)}")
        if self.cost not in COSTS:
            raise ConfigError(f"no cost {self.cost!r} of a tool: use one of {', '.join(COSTS)}")
        found = describe(self.name, self.function)
        if self.description:
            found["doc"] = self.description
        if self.parameters is not None:
            found["parameters"] = [dict(one) for one in self.parameters]
        object.__setattr__(self, "description", found.get("doc", ""))
        object.__setattr__(self, DESCRIPTION, found)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)

    @property
    def summary(self) -> str:
        """The first line of the description."""
        return self.description.strip().partition("\n")[0]

    @property
    def call(self) -> str:
        """How it is called, for a prompt."""
        if self.usage:
            return self.usage
        try:
            return f"{self.name}{inspect.signature(self.function)}"
        except (TypeError, ValueError):
            return f"{self.name}(...)"

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise TypeError, with how to call it, if arguments do not fit the function."""
        try:
            signature = inspect.signature(self.function)
        except (TypeError, ValueError):
            return
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as exc:
            raise TypeError(f"{self.name}: {exc}; call {self.call}") from None
        kinds = _hints(self.function)
        for name, value in given.items():
            plain = signature.parameters[name].kind in _NAMED
            if plain and name in kinds and not _fits(value, kinds[name]):
                wanted = " or ".join(_names(kinds[name]))
                shown = type(value).__name__
                raise TypeError(f"{self.name}: {name} must be {wanted}, not {shown}: {self.call}")


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@overload
def tool(function: Function, /, **facts: Any) -> Tool: ...


@overload
def tool(function: None = None, /, **facts: Any) -> Callable[[Function], Tool]: ...


def tool(function: Function | None = None, /, **facts: Any) -> Tool | Callable[[Function], Tool]:
    """Make a tool of a function, by its signature and docstring; `facts` are fields of Tool.

    It is called with the function, or used as a decorator, with or without facts.
    """
    if function is None:
        return lambda given: tool(given, **facts)
    if isinstance(function, Tool):
        raise ConfigError(f"{function.name} is a tool already")
    name = facts.pop("name", None) or getattr(function, "__name__", "")
    return Tool(name=name, function=function, **facts)


def by_name(given: Mapping[str, Function] | Iterable[Function]) -> dict[str, Tool]:
    """Return tools by name: of a mapping of names to functions, or of functions or tools."""
    if isinstance(given, Mapping):
        pairs = list(given.items())
    else:
        pairs = [(one.name if isinstance(one, Tool) else one.__name__, one) for one in given]
    found: dict[str, Tool] = {}
    for name, one in pairs:
        if name in found:
            raise ConfigError(f"there are two tools {name!r}: give one another name")
        same = isinstance(one, Tool) and one.name == name
        found[name] = one if same else _named(name, one)
    return found


def _named(name: str, given: Function) -> Tool:
    if isinstance(given, Tool):
        facts = {field: getattr(given, field) for field in given.__dataclass_fields__}
        return Tool(**{**facts, "name": name})
    return Tool(name=name, function=given)


def _hints(function: Function) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except Exception:  # noqa: BLE001 - an annotation may be any text
        return {}


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a value is of an annotated type; of one that is not plain, any value is."""
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return any(_fits(value, one) for one in typing.get_args(kind))
    if kind is type(None):
        return value is None
    if kind not in _PLAIN:
        return True
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _names(kind: Any) -> list[str]:
    return [getattr(one, "__name__", str(one)) for one in typing.get_args(kind) or (kind,)]
