"""The host's end of the guest's calls: finds the handler, runs it, returns its answer."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import difflib
import inspect
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from atoll.guest.core.stdin import STDIN_CALL
from atoll.guest.shared import values

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from atoll.config import Handler, SandboxConfig
    from atoll.guest.shared.messages import Json

    _Jobs = SimpleQueue[Callable[[], None] | None]

MAX_BATCH = 10_000
MAX_PIECE = 1 << 20
"""Bytes of standard input in one answer."""
MAX_BATCH_CHARACTERS = 32 << 20
"""What a batch's answers may have together: more could not be sent, and would be held till then."""
MAX_LEFT_RUNNING = 256
"""Handlers that may go on after their calls were given up; past it no other is started."""
MAX_MESSAGE = 2000
CHECK = "__atoll_check__"
"""Method of a tool that raises TypeError for arguments that it does not take."""
ENDINGS = (SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, StopIteration)
"""What a handler may raise and an event loop would take for its own."""


class CallFailedError(Exception):
    """A guest's call that failed, with the message for the guest.

    `data` is given if a tool raised: type name and message of its exception, for the guest to
    raise the same.
    """

    def __init__(self, message: str, data: Json | None = None) -> None:
        super().__init__(message[:MAX_MESSAGE])
        self.data = data


class HandlerEndedError(Exception):
    """A handler raised one of ENDINGS."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(_text(cause))
        self.kind = type(cause).__name__


class HostBridge:
    """Answers the guest's calls. Sync handlers run in threads, async ones in the loop."""

    def __init__(self, config: SandboxConfig, get_context: Callable[[], Any]) -> None:
        self._get_context = get_context
        self._threads = HandlerThreads(config.max_concurrency)
        self._concurrency = config.max_concurrency
        self._queries: dict[str, Handler | None] = {
            "llm_query": config.on_llm_query,
            "rlm_query": config.on_rlm_query,
            STDIN_CALL: config.on_stdin,
        }
        self._tools: Mapping[str, Handler] = config.tools
        self.callers: dict[str | None, contextvars.Context] = {}
        """The context variables of each call to execute while it runs, by its name: handlers run
        with them."""

    @property
    def tools(self) -> Mapping[str, Handler]:
        """The tools that guest code may call."""
        return self._tools

    def exchange_tools(self, old: Mapping[str, Handler], new: Mapping[str, Handler]) -> None:
        """Offer `new` instead of `old`; tools that a backend added by itself stay."""
        added = {name: tool for name, tool in self._tools.items() if name not in old}
        self._tools = {**added, **new}

    async def handle(self, method: str, params: Mapping[str, Any]) -> Any:
        """Return the answer to a guest's call; raise CallFailedError with what to tell it."""
        try:
            if method == "host.call":
                return await self._call(params["name"], params)
            if method == "host.batch":
                return await self._batch(params["name"], params["calls"])
        except (KeyError, TypeError, AttributeError) as exc:
            raise CallFailedError(f"not a call: {type(exc).__name__}") from None
        raise CallFailedError(f"the host offers no method {method[:100]!r}")

    def close(self) -> None:
        """End the threads; a handler that still runs is not waited for."""
        self._threads.close()

    async def _batch(self, name: str, calls: list[Any]) -> list[Json]:
        if len(calls) > MAX_BATCH:
            raise CallFailedError(f"a batch of {len(calls):,} calls; the limit is {MAX_BATCH:,}")
        self._handler(name)  # without one, the batch as a whole is refused
        answers: list[Json] = [{} for _ in calls]
        queue, left = iter(enumerate(calls)), MAX_BATCH_CHARACTERS

        async def work() -> None:
            nonlocal left
            for index, call in queue:
                if left < 0:
                    return
                try:
                    answers[index] = {"value": await self._call(name, call)}
                    left -= _characters(answers[index])
                except CallFailedError as exc:
                    answers[index] = {"error": str(exc)}

        await asyncio.gather(*(work() for _ in range(min(self._concurrency, len(calls)))))
        if left < 0:
            most = f"{MAX_BATCH_CHARACTERS:,} characters"
            raise CallFailedError(
                f"the answers of the batch have over {most}: ask for fewer at once"
            )
        return answers

    async def _call(self, name: str, call: Mapping[str, Any]) -> Any:
        handler, args, kwargs = self._resolve(name, call)
        try:
            getattr(handler, CHECK, _any)(args, kwargs)
            return values.encode(await self._invoke(call.get("execution"), handler, args, kwargs))
        except CallFailedError:  # a client of the daemon has said what it is
            raise
        except Exception as exc:
            kind = exc.kind if isinstance(exc, HandlerEndedError) else type(exc).__name__
            data = _raised(kind, exc) if name in self._tools else None
            raise CallFailedError(f"{name}: {kind}: {_text(exc)}", data) from exc

    def _resolve(self, name: str, call: Mapping[str, Any]) -> tuple[Handler, list[Any], Any]:
        handler = self._handler(name)
        if name not in self._tools:
            return handler, self._query_args(name, call), {}
        args, kwargs = _decode(call["args"]), _decode(call.get("kwargs", {}))
        if not isinstance(args, list) or not isinstance(kwargs, dict):
            raise CallFailedError("not a call: arguments of no known shape")
        return handler, args, kwargs

    def _handler(self, name: str) -> Handler:
        if name not in self._queries and name not in self._tools:
            known = ", ".join(sorted(self._tools)) or "none"
            close = difflib.get_close_matches(str(name)[:100], self._tools, 1)
            near = f": did you mean {close[0]!r}?" if close else ";"
            raise CallFailedError(f"no tool {str(name)[:100]!r}{near} there are: {known}")
        handler = self._tools.get(name) or self._queries.get(name)
        if handler is None:
            raise CallFailedError(f"no {name}: give create_sandbox an on_{name} handler")
        return handler

    def _query_args(self, name: str, call: Mapping[str, Any]) -> list[Any]:
        args = _decode(call["args"])
        if name == STDIN_CALL:
            return [_piece_size(args)]
        if not isinstance(args, list) or len(args) != 1 or not isinstance(args[0], str):
            raise CallFailedError(f"{name} takes a text")
        if name == "rlm_query":
            shared = call.get("shared_context") is True
            args.append(self._get_context() if shared else _decode(call.get("context")))
        elif "samples" in call:
            args.append(_samples(call["samples"]))
        return args

    async def _invoke(
        self, execution: str | None, handler: Handler, args: list[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call a handler in a copy of its caller's context."""
        caller = self.callers.get(execution)
        here = contextvars.copy_context() if caller is None else caller.copy()
        if inspect.iscoroutinefunction(handler):
            return await _await_in(here, handler(*args, **kwargs))
        answer = await self._threads.run(lambda: here.run(run_handler, handler, args, kwargs))
        return await _await_in(here, answer) if inspect.isawaitable(answer) else answer


class HandlerThreads:
    """Daemon threads for handlers that block, `most` of them at a time.

    A call may be given up while its handler goes on: the cell has ended. The handler then no
    longer counts, or as many that hang would block every later call.
    """

    def __init__(self, most: int) -> None:
        self._free = asyncio.Semaphore(most)
        self._idle: list[_Jobs] = []
        self._left_running = 0
        self._closed = False

    async def run(self, work: Callable[[], Any]) -> Any:
        """Return what `work` returns in a thread, or raise what it raises."""
        async with self._free:
            if self._left_running >= MAX_LEFT_RUNNING:
                many = f"{self._left_running} handlers of earlier calls"
                raise CallFailedError(f"{many} have not returned: no other is started")
            done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            jobs = self._idle.pop() if self._idle else _start_thread()
            jobs.put(lambda: self._work(work, jobs, done))
            try:
                return await done
            except asyncio.CancelledError:
                self._left_running += done.cancelled()
                raise

    def close(self) -> None:
        """End the threads that are idle; the others end when their handlers return."""
        self._closed = True
        while self._idle:
            self._idle.pop().put(None)

    def _work(self, work: Callable[[], Any], jobs: _Jobs, done: asyncio.Future[Any]) -> None:
        """Run `work`; called in a thread."""
        value, error = None, None
        try:
            value = work()
        except BaseException as exc:  # noqa: BLE001 - it is raised where the call waits
            error = exc
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            done.get_loop().call_soon_threadsafe(self._finish, jobs, done, value, error)

    def _finish(
        self, jobs: _Jobs, done: asyncio.Future[Any], value: Any, error: BaseException | None
    ) -> None:
        if done.cancelled():
            self._left_running -= 1
        elif error is not None:
            done.set_exception(error)
        else:
            done.set_result(value)
        if self._closed:
            jobs.put(None)
        else:
            self._idle.append(jobs)


def _start_thread() -> _Jobs:
    jobs: _Jobs = SimpleQueue()
    threading.Thread(target=_serve, args=(jobs,), name="atoll-call", daemon=True).start()
    return jobs


def _serve(jobs: _Jobs) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # an idle thread holds nothing of the last call


def _piece_size(args: Any) -> int:
    """Return how many bytes of standard input a guest asks for, at most MAX_PIECE."""
    if not isinstance(args, list) or len(args) != 1 or type(args[0]) is not int or args[0] < 1:
        raise CallFailedError("standard input is read by a positive number of bytes")
    return min(args[0], MAX_PIECE)


def _samples(given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        message = f"samples must be a whole number, not {given!r:.60}"
        raise CallFailedError(f"llm_query: {message}", _raised("TypeError", TypeError(message)))
    return given


def run_handler(handler: Handler, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function; HandlerEndedError for exceptions that would end an event loop."""
    try:
        return handler(*args, **kwargs)
    except ENDINGS as exc:
        raise HandlerEndedError(exc) from exc


async def _await_in(context: contextvars.Context, answer: Awaitable[Any]) -> Any:
    return await asyncio.get_running_loop().create_task(await_handler(answer), context=context)


async def await_handler(answer: Awaitable[Any]) -> Any:
    """Await a handler's answer; HandlerEndedError for exceptions that would end an event loop."""
    try:
        return await answer
    except ENDINGS as exc:
        task = asyncio.current_task()
        if isinstance(exc, asyncio.CancelledError) and task is not None and task.cancelling():
            raise  # the call was cancelled, the handler did not raise it by itself
        raise HandlerEndedError(exc) from exc


def _raised(kind: str, exc: Exception) -> Json:
    """Return type name and message of an exception; no traceback and no cause."""
    plain = isinstance(exc, KeyError) and len(exc.args) == 1 and isinstance(exc.args[0], str | int)
    message = exc.args[0] if plain else _text(exc)
    message = message[:MAX_MESSAGE] if isinstance(message, str) else message
    return {"type": kind[:MAX_MESSAGE], "message": values.encode(message)}


def _any(_args: Sequence[Any], _kwargs: Mapping[str, Any]) -> None:
    """Take any arguments."""


def _text(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception:  # noqa: BLE001 - a handler's exception may fail at anything
        return "<the message could not be shown>"


def _characters(value: Any) -> int:
    """About how long an encoded value is."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(key) + _characters(item) for key, item in value.items())
    return sum(map(_characters, value)) if isinstance(value, list) else 8


def _decode(value: Any) -> Any:
    try:
        return values.decode_plain(value)
    except (ValueError, RecursionError) as exc:
        raise CallFailedError(f"not a value: {exc}") from None
