"""Tools by name (tool_call, TOOL, CALL), and calls of one wave that run side by side in threads."""

from __future__ import annotations

import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    Function = Callable[..., Any]

INDEX = "$index"
"""The argument that tells the host which call of a chain this is; no parameter has this name."""
WAVE = "atoll_wave"
"""A name that every guard lets pass."""


class NamedCalls:
    """Functions that call a tool by its name, as its own function does."""

    NAMES = ("tool_call", "TOOL", "CALL")

    def __init__(self, call_host: Function, functions: dict[str, Function]) -> None:
        self._call_host, self._functions = call_host, functions

    def tool_call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a tool by its name, with named arguments or with one dict of them."""
        if len(args) == 1 and not kwargs and isinstance(args[0], dict):
            return self._named(name, **args[0])
        return self._named(name, *args, **kwargs)

    def TOOL(self, name: str, /, *args: Any, **kwargs: Any) -> Any:  # noqa: N802 - as models know it
        """Call a tool, as tool_call does."""
        return self.tool_call(name, *args, **kwargs)

    def CALL(self, name: str, /, *args: Any, **kwargs: Any) -> Any:  # noqa: N802 - as models know it
        """Call a tool, as tool_call does."""
        return self.tool_call(name, *args, **kwargs)

    def _named(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a tool by its name, with the arguments that its own function takes."""
        if not isinstance(name, str):
            raise TypeError(
                "a tool is called by its name: CALL('grep', ...), not {}".format(
                    type(name).__name__
                )
            )
        function = self._functions.get(name)
        if function is None:
            return self._call_host(name, *args, **kwargs)  # the host says which names there are
        return function(*args, **kwargs)


class Waves:
    """Calls that were started and not yet asked for. `wave(3, grep)("x")` starts, `wave(3)` waits.

    Arguments are evaluated where the call is started; only the call itself runs in a thread.
    """

    def __init__(self) -> None:
        self._started: dict[int, _Started] = {}
        self._local = threading.local()

    def __call__(self, index: int, function: Function | None = None) -> Any:
        """Return what starts the call, or, without a function, the result of the call."""
        if function is None:
            return self._started.pop(index).result()

        def start(*args: Any, **kwargs: Any) -> None:
            self._started[index] = _Started(lambda: self._run(index, function, args, kwargs))

        return start

    def numbered(self, call_host: Function) -> Function:
        """Return call_host with the number of the call, if it is made in a wave."""

        def call(name: str, /, *args: Any, **kwargs: Any) -> Any:
            index = getattr(self._local, "index", None)
            if index is not None:
                kwargs[INDEX] = index
            return call_host(name, *args, **kwargs)

        return call

    def _run(self, index: int, function: Function, args: Any, kwargs: Any) -> Any:
        self._local.index = index
        return function(*args, **kwargs)


def is_own_thread(start: Any) -> bool:
    """Return whether `start`, the function of a new thread, would run one call of a wave."""
    thread = getattr(start, "__self__", None)
    target = getattr(thread, "_target", None)
    return type(thread) is threading.Thread and getattr(target, "__func__", None) is _Started.serve


class _Started:
    """One call in a thread of its own."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self.serve, daemon=True)
        self._thread.start()

    def serve(self) -> None:
        """Make the call, in the new thread."""
        try:
            self._value = self._work()
        except BaseException as exc:
            self._error = exc

    def result(self) -> Any:
        """Wait for the call; return what it returned, or raise what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._value
