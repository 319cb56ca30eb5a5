"""The registry of tools: the environment's own and the caller's, by name.

From it come the handlers that guest code reaches by the bridge, the check of their arguments, the
list of functions in a prompt, SHOW_TOOLS(), and the log of calls.
"""

from __future__ import annotations

import inspect
import time
from functools import wraps
from typing import TYPE_CHECKING, Any

from atoll.environment.invocations import Invocation, InvocationLog, shows, sizes, tokens
from atoll.errors import ConfigError
from atoll.signatures import DESCRIPTION

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from atoll.config import Handler
    from atoll.tools import Tool

LONGEST_SUMMARY = 200


class Registry:
    """Tools by name, and the log of their calls."""

    def __init__(self) -> None:
        self.log = InvocationLog()
        self._tools: dict[str, Tool] = {}
        self._hidden: set[str] = set()

    def add(self, tools: Iterable[Tool], *, hidden: bool = False) -> None:
        """Add tools; a hidden one can be called but is in no list."""
        for one in tools:
            if one.name in self._tools:
                raise ConfigError(
                    f"a tool cannot be called {one.name!r}: the environment has that name"
                )
            self._tools[one.name] = one
            if hidden:
                self._hidden.add(one.name)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def handlers(self) -> dict[str, Handler]:
        """Return what the bridge calls for each tool: checked and logged."""
        return {name: self.logged(one) for name, one in self._tools.items()}

    def listing(self, without: Collection[str] = ()) -> str:
        """Return the tools for a prompt, one a line: how each is called and what it does."""
        shown = (one for one in self if one.name not in self._hidden | set(without))
        return "\n".join(
            f"- {one.call}: {_one_line(one.summary)}" if one.summary else f"- {one.call}"
            for one in shown
        )

    def logged(self, one: Tool) -> Handler:
        """Return a function that checks the arguments, calls the tool, and logs the call."""
        described = getattr(one, DESCRIPTION)
        if inspect.iscoroutinefunction(one.function):

            @wraps(one.function)
            async def asked(*args: Any, **kwargs: Any) -> Any:
                entry = _Entry(self.log, one, args, kwargs)
                with entry:
                    one.check(args, kwargs)
                    entry.answer = await one.function(*args, **kwargs)
                return entry.answer

            asked.__dict__[DESCRIPTION] = described
            return asked

        @wraps(one.function)
        def called(*args: Any, **kwargs: Any) -> Any:
            entry = _Entry(self.log, one, args, kwargs)
            with entry:
                one.check(args, kwargs)
                entry.answer = one.function(*args, **kwargs)
            return entry.answer

        called.__dict__[DESCRIPTION] = described
        return called


class _Entry:
    """One call on its way into the log."""

    def __init__(
        self, log: InvocationLog, one: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._log, self._tool, self._args, self._kwargs = log, one, args, kwargs
        self.answer: Any = None

    def __enter__(self) -> None:
        self._parent, self._started = self._log.parent, time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        asks = self._tool.cost == "model"
        self._log.add(
            Invocation(
                tool=self._tool.name,
                parent=self._parent,
                sizes=sizes(self._args, self._kwargs),
                duration_ms=(time.perf_counter() - self._started) * 1000,
                tokens_in=tokens(*self._args) if asks else 0,
                tokens_out=tokens(_text(self.answer)) if asks else 0,
                outcome="ok" if kind is None else kind.__name__,
            ),
            explored=self._tool.explores and kind is None and shows(self.answer),
        )


def _text(answer: Any) -> Any:
    """Return the text of an answer; one with attributes is a dict that begins with its text."""
    return next(iter(answer.values()), "") if isinstance(answer, dict) else answer


def _one_line(text: str) -> str:
    return " ".join(text.split())[:LONGEST_SUMMARY]
