"""Functions that stand for the host's tools: with their names, parameters and docstrings.

The host describes a tool by data. A real function is made from it, so that help(), inspect and a
call with wrong arguments behave as for any other function, and nothing has to be imported for it.
"""

from __future__ import annotations

import _ast

from ..shared import values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from ..shared.messages import Names

    Relay = Callable[[list[Any], Names], Any]

POSITIONAL_ONLY, POSITIONAL, VARIADIC, KEYWORD, KEYWORDS = range(5)
"""Kinds of parameters, by the numbers that `inspect` has for them."""
_RELAY = ".relay"
"""Where the function finds what calls the host; no parameter can have this name."""
_TEMPLATE = "def tool(): pass"
_CONSTANTS = frozenset({"None", "True", "False", "__debug__"})


class Annotation(str):
    """An annotation as text, shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str.__str__(self)


class HostDefault:
    """A default that only the host has: shown as `...`, and never sent."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "..."


def make(description: Any, call: Callable[..., Any]) -> tuple[str, Callable[..., Any]]:
    """Return the name of a tool and a function that calls it; ValueError if it has no name."""
    if isinstance(description, str):
        description = {"name": description}
    name = description.get("name") if isinstance(description, dict) else None
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError("a tool must have a Python name")

    def relay(args: list[Any], kwargs: Names) -> Any:
        return call(name, *args, **kwargs)

    try:
        made = _build(name, description.get("parameters"), relay)
    except Exception:  # a description that is not one of a function: any arguments are passed on
        made = _build(name, None, relay)
    doc, returns = description.get("doc"), description.get("returns")
    made.__doc__ = doc if isinstance(doc, str) else None
    if isinstance(returns, str):
        made.__annotations__["return"] = Annotation(returns)
    return name, made


class _Parameter:
    """One parameter, from the host's description."""

    def __init__(self, given: Names) -> None:
        self.name, self.kind = given["name"], given["kind"]
        if not self.name.isidentifier() or self.name in _CONSTANTS or not 0 <= self.kind <= 4:
            raise ValueError(self.name)
        self.has_default = "default" in given or given.get("host_default") is True
        self.default = values.decode(given["default"]) if "default" in given else HostDefault()
        self.annotation = given.get("annotation")

    def is_default(self, given: Names) -> bool:
        """Return whether the caller left the parameter to its default."""
        return self.has_default and given[self.name] is self.default


def _build(name: str, described: Any, relay: Relay) -> Any:
    if described is None:
        described = [{"name": "args", "kind": VARIADIC}, {"name": "kwargs", "kind": KEYWORDS}]
    parameters = [_Parameter(description) for description in described]

    def collect(given: Names) -> Any:
        return relay(*_arguments(parameters, given))

    space = {_RELAY: collect, "__name__": "tools", "__package__": __package__}
    exec(compile(_tree(name, parameters), "<tool>", "exec", dont_inherit=True), space)
    made: Any = space[name]
    made.__defaults__ = _defaults(parameters, (POSITIONAL_ONLY, POSITIONAL)) or None
    keyword = [
        parameter for parameter in parameters if parameter.kind == KEYWORD and parameter.has_default
    ]
    made.__kwdefaults__ = {parameter.name: parameter.default for parameter in keyword} or None
    made.__annotations__ = {
        parameter.name: Annotation(parameter.annotation)
        for parameter in parameters
        if isinstance(parameter.annotation, str)
    }
    return made


def _tree(name: str, parameters: list[_Parameter]) -> Any:
    """Return the syntax tree of `def name(parameters): return relay({parameter: value, ...})`."""
    tree: Any = compile(_TEMPLATE, "<tool>", "exec", _ast.PyCF_ONLY_AST, dont_inherit=True)
    function = tree.body[0]
    function.name = name
    at: Any = {"lineno": 1, "col_offset": 0}

    def named(*kinds: int) -> list[Any]:
        return [
            _ast.arg(arg=parameter.name, annotation=None, **at)
            for parameter in parameters
            if parameter.kind in kinds
        ]

    arguments = function.args
    arguments.posonlyargs, arguments.args = named(POSITIONAL_ONLY), named(POSITIONAL)
    arguments.kwonlyargs = named(KEYWORD)
    arguments.kw_defaults = [None] * len(arguments.kwonlyargs)
    arguments.vararg = next(iter(named(VARIADIC)), None)
    arguments.kwarg = next(iter(named(KEYWORDS)), None)
    load = _ast.Load()
    given = _ast.Dict(
        keys=[_ast.Constant(value=parameter.name, kind=None, **at) for parameter in parameters],
        values=[_ast.Name(id=parameter.name, ctx=load, **at) for parameter in parameters],
        **at,
    )
    called = _ast.Call(func=_ast.Name(id=_RELAY, ctx=load, **at), args=[given], keywords=[], **at)
    function.body = [_ast.Return(value=called, **at)]
    return tree


def _defaults(parameters: list[_Parameter], kinds: tuple[int, ...]) -> tuple[Any, ...]:
    chosen = [parameter for parameter in parameters if parameter.kind in kinds]
    tail = [parameter.default for parameter in chosen if parameter.has_default]
    if any(parameter.has_default for parameter in chosen[: len(chosen) - len(tail)]):
        raise ValueError("a parameter without a default follows one with a default")
    return tuple(tail)


def _arguments(parameters: list[_Parameter], given: Names) -> tuple[list[Any], Names]:
    """Return what to send: a default is left to the host, what follows it goes by its name."""
    args: list[Any] = []
    kwargs: Names = {}
    positional = [parameter for parameter in parameters if parameter.kind <= POSITIONAL]
    more = next(
        (given[parameter.name] for parameter in parameters if parameter.kind == VARIADIC), ()
    )
    needed = len(positional) if more else _positions(positional, given)
    for index, parameter in enumerate(positional):
        if index < needed or (len(args) == index and not parameter.is_default(given)):
            args.append(given[parameter.name])
        elif not parameter.is_default(given):
            kwargs[parameter.name] = given[parameter.name]
    for parameter in parameters:
        if parameter.kind == KEYWORDS:
            kwargs.update(given[parameter.name])
        elif parameter.kind == KEYWORD and not parameter.is_default(given):
            kwargs[parameter.name] = given[parameter.name]
    return [*args, *more], kwargs


def _positions(positional: list[_Parameter], given: Names) -> int:
    """Return how many parameters must be sent by position, because the last has no other way."""
    result = [
        index
        for index, parameter in enumerate(positional)
        if parameter.kind == POSITIONAL_ONLY and not parameter.is_default(given)
    ]
    return result[-1] + 1 if result else 0
