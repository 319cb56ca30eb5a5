"""Tool: a host function that guest code may call, described for the model and the host.

    @atoll.tool(read_only=True)
    def population(city: str) -> int:
        "Return how many people live in a city."

The environment's own functions are tools too: agent/environment/tools/registry holds all of them.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, overload

from atoll.config import BUILT_IN
from atoll.errors import ConfigError
from atoll.policy import checked_keywords
from atoll.sandbox import schemas
from atoll.sandbox.signatures import DESCRIPTION, describe

Function = Callable[..., Any]
CALLERS = ("code", "chain")
"""Who may call a tool: the code of a cell, or a chain of calls that the host runs by itself."""
COSTS = ("free", "model", "network")
TREATMENTS = ("allow", "ask", "refuse")
"""What to do with an argument that repeats text from an untrusted source."""
_PLAIN = (str, int, float, bool, list, dict)


@checked_keywords("fact of a tool")
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
    schema: Mapping[str, Any] | None = None
    """JSON schema of the parameters; unset: that of the function's signature."""
    result_schema: Mapping[str, Any] | None = None
    """JSON schema of the result; unset: that of the function's annotation."""
    untrusted: str = "allow"
    """What becomes of a call with text of an untrusted source in it: `allow`, `ask`, `refuse`."""
    source: str = ""
    """What the result is if it is untrusted text: `web`, `archive`, `model`, `document` ..."""
    module: str = ""
    """The module of the package `tools` that guest code finds it in; unset: it is a built-in."""
    timeout_seconds: float | None = None
    """How long a call may take; then guest code gets a TimeoutError. Unset: as long as the cell."""

    def __post_init__(self) -> None:
        if self.module and not (self.module.isidentifier() and self.module not in BUILT_IN):
            raise ConfigError(f"a module of tools must be a Python name, not {self.module!r:.60}")
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise ConfigError(f"a tool's name must be a Python name, not {self.name!r:.60}")
        if not callable(self.function):
            raise ConfigError(f"the tool {self.name} must be a function, not {self.function!r:.60}")
        if wrong := [caller for caller in self.allowed_callers if caller not in CALLERS]:
            raise ConfigError(f"no caller {wrong[0]!r} of a tool: use one of {', '.join(CALLERS)}")
        if self.cost not in COSTS:
            raise ConfigError(f"no cost {self.cost!r} of a tool: use one of {', '.join(COSTS)}")
        if self.untrusted not in TREATMENTS:
            known = ", ".join(TREATMENTS)
            raise ConfigError(f"untrusted={self.untrusted!r} of {self.name}: use one of {known}")
        description = describe(self.name, self.function)
        if self.description:
            description["doc"] = self.description
        if self.parameters is not None:
            description["parameters"] = [dict(parameter) for parameter in self.parameters]
        if self.module:
            description |= {"module": self.module, "member": self.member}
        object.__setattr__(self, "description", description.get("doc", ""))
        object.__setattr__(self, DESCRIPTION, description)

    def with_function(self, function: Function) -> Tool:
        """Return the tool with another function that is called in the same way."""
        made = copy.copy(self)
        object.__setattr__(made, "function", function)
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)

    @property
    def input_schema(self) -> schemas.Schema:
        """The JSON schema of its parameters."""
        return schemas.of_function(self.function) if self.schema is None else dict(self.schema)

    @property
    def output_schema(self) -> schemas.Schema:
        """The JSON schema of its result; empty if any value may be returned."""
        given = self.result_schema
        return schemas.of_result(self.function) if given is None else dict(given)

    @property
    def member(self) -> str:
        """Its name in its module."""
        return self.name.removeprefix(f"{self.module}__")

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

    def check(self, args: Iterable[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise TypeError, with how to call it, if arguments do not fit the function."""
        try:
            signature = inspect.signature(self.function)
        except (TypeError, ValueError):
            return
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as exc:
            raise TypeError(f"{self.name}: {exc}; call {self.call}") from None
        kinds = schemas.hints_of(self.function)
        for name, value in given.items():
            known = signature.parameters[name]
            plain = known.kind in _NAMED and value is not known.default
            if plain and name in kinds and not _fits(value, kinds[name]):
                wanted = " or ".join(_names(kinds[name]))
                shown = type(value).__name__
                raise TypeError(f"{self.name}: {name} must be {wanted}, not {shown}: {self.call}")
        if self.schema is not None:
            named = schemas.named_arguments(signature, args, kwargs)
            schemas.check(named, self.schema, self.name)

    __atoll_check__ = check


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


def by_name(given: Mapping[str, Function] | Iterable[Any]) -> dict[str, Tool]:
    """Return tools by name: of a mapping of names to functions, or of functions, tools, sources.

    A source has a method `atoll_tools()`, as MCPTools has; a LangChain tool is tool by its shape.
    """
    if isinstance(given, Mapping):
        pairs = list(given.items())
    elif not isinstance(given, Iterable):
        raise ConfigError(f"tools must be a list of functions, not {given!r:.60}")
    else:
        pairs = [(name, tool) for some in given for name, tool in _named_tools(some)]
    result: dict[str, Tool] = {}
    for name, tool in pairs:
        if name in result:
            raise ConfigError(f"there are two tools {name!r}: give one another name")
        same = isinstance(tool, Tool) and tool.name == name
        result[name] = tool if same else _named(name, tool)
    return result


def _named_tools(given: Any) -> list[tuple[str, Any]]:
    """Return the tools that one item of `tools=[...]` stands for."""
    if isinstance(given, Tool):
        return [(given.name, given)]
    if hasattr(given, "atoll_tools"):
        return [(tool.name, tool) for tool in given.atoll_tools()]
    if hasattr(given, "invoke") and isinstance(getattr(given, "name", None), str):
        made = of_langchain(given)
        return [(made.name, made)]
    name = getattr(given, "__name__", None)
    if name is None:
        raise ConfigError(
            f"not a tool: {given!r:.60}; give a function, a Tool or a source of tools"
        )
    if name == "<lambda>":
        raise ConfigError("a lambda has no name to call it by: write tools={'name': function}")
    return [(name, given)]


def of_langchain(given: Any) -> Tool:
    """Make a tool of a LangChain tool; its async form is used where there is one."""
    schema = given.get_input_schema().model_json_schema()

    def call(**arguments: Any) -> Any:
        return given.invoke(arguments)

    async def ask(**arguments: Any) -> Any:
        return await given.ainvoke(arguments)

    only_async = getattr(given, "func", None) is None and getattr(given, "coroutine", None)
    return from_schema(given.name, ask if only_async else call, schema, given.description)


def from_schema(
    name: str, call: Function, schema: Mapping[str, Any], description: str = "", **facts: Any
) -> Tool:
    """Make a tool of a function that takes named arguments, and of the schema that they have."""
    signature = schemas.signature_of(schema)
    call.__dict__["__signature__"] = signature

    @functools.wraps(call)
    def named(*args: Any, **kwargs: Any) -> Any:
        return call(**schemas.named_arguments(signature, args, kwargs))

    async def asked(*args: Any, **kwargs: Any) -> Any:
        return await call(**schemas.named_arguments(signature, args, kwargs))

    made = functools.wraps(call)(asked) if inspect.iscoroutinefunction(call) else named
    plain = plain_name(name)
    if module := facts.get("module"):
        plain = f"{module}__{plain}"
    made.__doc__ = description or None
    made.__name__ = plain
    return Tool(name=plain, function=made, schema=dict(schema), description=description, **facts)


def plain_name(name: str) -> str:
    """Return a Python name for any name."""
    plain = re.sub(r"\W", "_", name)
    return plain if plain.isidentifier() and plain not in BUILT_IN else f"tool_{plain}"


def _named(name: str, given: Function) -> Tool:
    if isinstance(given, Tool):
        return dataclasses.replace(given, name=name)
    return Tool(name=name, function=given)


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a value is of an annotated type; of one that is not plain, any value is."""
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return any(_fits(value, member) for member in typing.get_args(kind))
    if kind is type(None):
        return value is None
    if kind not in _PLAIN:
        return True
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _names(kind: Any) -> list[str]:
    return [getattr(member, "__name__", str(member)) for member in typing.get_args(kind) or (kind,)]
