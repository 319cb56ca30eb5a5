"""Calls from guest code to the host: llm_query, rlm_query, their batches, and tools by name."""

from __future__ import annotations

from ..core.failures import HostCallError
from ..core.stdin import STDIN_CALL
from ..shared import values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from ..core.ports import Calls
    from ..shared.messages import Json

CALL_METHOD = "host.call"
ANSWER_KEY = "$answer"
"""The key of the text in an answer that has attributes."""


_BY_NAME = (
    "type('HostFunctions', (), {'__getattr__': lambda _, name: "
    "vars(__import__('__main__')).get(name) or getattr(__import__('builtins'), name)})()"
)
"""What stands for a bridge in another process: the functions that `__main__` has there, or that
`children` has put beside the built-in ones. They say that only the session's own process can call
the host. An expression, since no other process can import this module."""


class FailedQuery(str):
    """A query that failed in a batch: text that says so, with `failed` set."""

    __slots__ = ()
    __module__ = "builtins"  # where guest code finds it, and pickle
    failed = True


class SubAnswer(str):  # noqa: SLOT000 - it has attributes
    """The answer of an rlm_query: text, with facts about the run that gave it."""

    ended = "answered"
    """answered, forced (a limit was reached) or refused (it breaks a rule of the run)."""
    reason = ""
    value: Any = None
    evidence: Any = ()
    coverage: Any = None


class Bridge:
    """The guest's calls to the host."""

    NAMES = ("llm_query", "rlm_query", "batch_llm_query", "batch_rlm_query", "call_host")

    def __init__(self, channel: Calls, get_context: Callable[[], Any]) -> None:
        self._channel = channel
        self._get_context = get_context
        self._shared: Any = None
        self._promise: Callable[[str], Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, (_BY_NAME,)

    def __deepcopy__(self, _memo: Any) -> Bridge:
        return self

    def set_shared(self, context: Any) -> None:
        """Remember the context that the host already has, so that it is never sent back."""
        self._shared = context

    def be_lazy(self) -> None:
        """Make llm_query return promises, which are sent together when one of them is used."""
        from .lazy import LazyQueue

        self._promise = LazyQueue(self.batch_llm_query).promise

    def llm_query(self, prompt: str, samples: int = 1) -> Any:
        """Ask a language model; return its answer, or the promise of it.

        With `samples`, ask it so often, and return a list: identical prompts are otherwise asked
        once.
        """
        if samples != 1:
            return self._call("llm_query", [_text(prompt, "prompt")], {"samples": samples})
        if self._promise is not None:
            return self._promise(_text(prompt, "prompt"))
        return self._call("llm_query", [_text(prompt, "prompt")])

    def rlm_query(self, task: str, ctx: Any = None) -> Any:
        """Give a sub-task to a recursive call; without `ctx` it works on the current context."""
        answer = self._call("rlm_query", [_text(task, "task")], self._context_params(ctx))
        return _with_attributes(answer)

    def batch_llm_query(self, prompts: list[str]) -> list[Any]:
        """Ask many at once; return the answers in order, a failed one as a FailedQuery."""
        return self._batch("llm_query", [{"args": [_text(p, "prompt")]} for p in prompts])

    def batch_rlm_query(self, tasks: list[Any]) -> list[Any]:
        """Give many sub-tasks at once: strings, or dicts of task and (optional) context."""
        return self._batch("rlm_query", [self._task(task) for task in tasks])

    def call_host(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call the host's tool `name`."""
        return self._call(name, list(args), {"kwargs": values.encode(kwargs)})

    def read_stdin(self, size: int) -> Any:
        """Return up to `size` bytes of standard input; b"" at its end."""
        return self._call(STDIN_CALL, [size])

    def _task(self, task: Any) -> Json:
        if isinstance(task, dict):
            params = self._context_params(task.get("context", task.get("ctx")))
            return dict(params, args=[_text(task.get("task"), "task")])
        return dict(self._context_params(None), args=[_text(task, "task")])

    def _context_params(self, ctx: Any) -> Json:
        value = self._get_context() if ctx is None else ctx
        if value is self._shared:
            return {"shared_context": True}
        return {"context": values.encode(value)}

    def _call(self, name: str, args: list[Any], extra: Json | None = None) -> Any:
        params = dict(extra or {}, name=name, args=values.encode(args))
        return values.decode(self._channel.call(CALL_METHOD, params))

    def _batch(self, name: str, calls: list[Json]) -> list[Any]:
        answers = self._channel.call("host.batch", {"name": name, "calls": calls})
        if len(answers) != len(calls):
            raise HostCallError("the host answered {} of {}".format(len(answers), len(calls)))
        return [_answer(name, answer) for answer in answers]


def _answer(name: str, answer: Json) -> Any:
    if "error" in answer:
        return FailedQuery("[{} failed: {}]".format(name, answer["error"]))
    return _with_attributes(values.decode(answer["value"]))


def _with_attributes(answer: Any) -> Any:
    """Return the text of an answer with attributes as a SubAnswer; anything else as it is."""
    if not isinstance(answer, dict) or not isinstance(answer.get(ANSWER_KEY), str):
        return answer
    text = SubAnswer(answer.pop(ANSWER_KEY))
    text.__dict__.update(answer)
    return text


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError("{} must be a str, not {}".format(what, type(value).__name__))
    return str(value)
