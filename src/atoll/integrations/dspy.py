"""A code interpreter for DSPy: dspy.RLM and dspy.CodeAct run what a model writes in a sandbox.

    rlm = dspy.RLM("document, question -> answer", interpreter_factory=AtollInterpreter)

It implements the protocol `dspy.CodeInterpreter` and behaves as DSPy's own interpreter: the result
is the last value or the output, SUBMIT ends the run, and a model can repair errors of its code.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import keyword
from typing import TYPE_CHECKING, Any, NoReturn, Self

from atoll.concurrency import forks
from atoll.errors import AtollError, VariableError
from atoll.guest.shared.values import TOO_LARGE, Opaque
from atoll.integrations.common import LARGE, as_json, missing, open_box, upload_text
from atoll.policy import Capability
from atoll.types import Outcome

try:
    from dspy.primitives.code_interpreter import (
        CodeExecutionError,
        CodeInterpreterError,
        FinalOutput,
    )
    from dspy.primitives.python_interpreter import _dump_pydantic, _make_jsonable
    from dspy.utils.callback import with_callbacks
    from pydantic import BaseModel
    from pydantic_core import PydanticSerializationError, to_jsonable_python
except ImportError as exc:
    raise ImportError(missing("dspy", "dspy")) from exc

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from atoll.policy import Isolation
    from atoll.sandbox.blocking import SyncSandbox
    from atoll.types import SandboxResult

FINAL, SUBMIT, KEPT = "_AtollFinal", "_atoll_submit", "_atoll_kept"
RESERVED = ("SUBMIT", FINAL, SUBMIT, KEPT)
"""Names in the guest that a caller may not use for variables."""
NEEDED = frozenset({Capability.STATE, Capability.BRIDGE, Capability.WORKSPACE})
_SUBMIT_CODE = """\
class {final}(BaseException): pass
def SUBMIT({names}):
    {submit}({{{pairs}}})
    raise {final}
"""


class AtollInterpreter:
    """Runs the code of one DSPy session in one sandbox; state is kept until shutdown().

    `shared` is a large text that guest code maps without a copy: pass the same object as a
    variable. `options` are those of create_sandbox.
    """

    execution_instructions = (
        "Code runs as CPython in an isolated sandbox. Variables, imports and functions persist for "
        "this session. Host tools and SUBMIT are global functions. The standard library is there; "
        "the network is not."
    )

    def __init__(
        self,
        tools: Mapping[str, Callable[..., Any]] | None = None,
        output_fields: list[dict[str, Any]] | None = None,
        *,
        shared: str | None = None,
        callbacks: list[Any] | None = None,
        **options: Any,
    ) -> None:
        self.tools: dict[str, Callable[..., Any]] = dict(tools or {})
        self.output_fields = output_fields
        self.callbacks = list(callbacks or [])
        self._shared, self._options = shared, options
        self._box: SyncSandbox | None = None
        self._ended = ""
        self._busy = forks.new_lock()
        self._offered: dict[str, Callable[..., Any]] = {}
        self._fields: list[str] | None = None
        self._sent: dict[str, str] = {}
        self._submitted: Any = None

    @property
    def isolation(self) -> Isolation:
        """How strongly the code is isolated from the host; starts the sandbox."""
        return self._open().isolation

    @with_callbacks  # type: ignore[untyped-decorator]
    def start(self) -> None:
        """Start the sandbox; do nothing if it runs."""
        self._require_open()
        if self._box is not None:
            return
        try:
            self._box = open_box({"context": self._shared, **self._options}, NEEDED)
        except AtollError as exc:
            self._end(f"no sandbox could be started: {exc}", exc)
        if self._shared is not None:
            self._box.execute(f"{KEPT} = {{'': context}}")

    @with_callbacks  # type: ignore[untyped-decorator]
    def execute(self, code: str, variables: dict[str, Any] | None = None) -> Any:
        """Run code; return its submission, the value of its last line, or its output."""
        if not self._busy.acquire(blocking=False):
            raise CodeInterpreterError(
                "AtollInterpreter cannot execute recursively from one of its tools, nor two at once"
            )
        try:
            given = {
                name: plain(checked_name(name), value) for name, value in (variables or {}).items()
            }
            box = self._open()
            try:
                self._offer(box)
                self._assign(box, given)
                return self._outcome(box, box.execute(code))
            except VariableError as exc:
                raise CodeInterpreterError(str(exc)) from exc
            except AtollError as exc:
                self._end(f"the sandbox failed: {exc}", exc)
        finally:
            self._busy.release()

    @with_callbacks  # type: ignore[untyped-decorator]
    def invoke_tool(self, tool_name: str, kwargs: dict[str, Any]) -> Any:
        """Call a tool of the host; runs in a thread, so a coroutine gets its own event loop."""
        if tool_name not in self.tools:
            raise CodeInterpreterError(f"Unknown tool: {tool_name}")
        answer = self.tools[tool_name](**kwargs)
        return asyncio.run(awaited(answer)) if inspect.isawaitable(answer) else answer

    @with_callbacks  # type: ignore[untyped-decorator]
    def shutdown(self) -> None:
        """End the sandbox. Calling it again does nothing."""
        self._ended = self._ended or "it was shut down"
        box, self._box = self._box, None
        if box is not None:
            box.destroy()

    def __call__(self, code: str, variables: dict[str, Any] | None = None) -> Any:
        """Run code, as execute() does."""
        return self.execute(code, variables)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.shutdown()

    def _open(self) -> SyncSandbox:
        self._require_open()
        if self._box is None:
            self.start()
        assert self._box is not None
        return self._box

    def _require_open(self) -> None:
        if self._ended:
            raise CodeInterpreterError(f"The interpreter session has ended: {self._ended}")

    def _end(self, why: str, cause: BaseException | None = None) -> NoReturn:
        """End the session permanently: later calls must not run without its lost state."""
        self._ended = why
        self.shutdown()
        raise CodeInterpreterError(f"interpreter state was lost: {why}") from cause

    def _offer(self, box: SyncSandbox) -> None:
        """Update the guest's tools, and SUBMIT if the output fields have changed."""
        if self.tools != self._offered:
            self._offered = dict(self.tools)
            tools = {name: self._handler(name, tool) for name, tool in self.tools.items()}
            box.set_tools({**tools, SUBMIT: self._submit})
        elif SUBMIT not in box.tools:
            box.add_tool(self._submit, name=SUBMIT)
        names = [str(field["name"]) for field in self.output_fields or [{"name": "output"}]]
        if names != self._fields:
            pairs = ", ".join(f"{checked_name(name)!r}: {name}" for name in names)
            code = _SUBMIT_CODE.format(
                final=FINAL, submit=SUBMIT, names=", ".join(names), pairs=pairs
            )
            box.execute(code)
            self._fields = names

    def _handler(self, name: str, tool: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(tool)
        if any(
            parameter.kind is parameter.VAR_POSITIONAL
            for parameter in signature.parameters.values()
        ):
            raise CodeInterpreterError(f"the tool {name} takes *args; give its arguments names")

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                bound = signature.bind(*args, **kwargs)
                named = {**bound.arguments, **bound.arguments.pop("kwargs", {})}
                return tool_result(self.invoke_tool(name, named))
            except Exception as exc:
                raise RuntimeError(f"{type(exc).__name__}: {exc}") from exc

        functools.update_wrapper(call, tool)
        call.__dict__["__signature__"] = signature
        return call

    def _submit(self, fields: dict[str, Any]) -> None:
        for name, value in fields.items():
            if isinstance(value, Opaque):
                raise TypeError(f"SUBMIT: {name} is a {value.type_name}: {value.reason}")
        self._submitted = as_json(fields)

    def _assign(self, box: SyncSandbox, given: dict[str, Any]) -> None:
        """Set the variables; a large text is sent once, and later taken from the guest's copy."""
        lines = []
        for name, value in given.items():
            if self._shared is not None and value is self._shared:
                lines.append(f"{name} = {KEPT}['']")
                continue
            text = as_text(value)
            if len(text) < LARGE:
                dunder = name.startswith("__")  # DSPy's own, which Atoll takes for Python's
                box.set_variable(f"_atoll{name}" if dunder else name, value)
                lines += [f"{name} = _atoll{name}"] if dunder else []
                continue
            if self._sent.get(name) is not text:
                reading = upload_text(box, name, text, is_json=not isinstance(value, str))
                lines.append(f"{KEPT} = globals().get({KEPT!r}, {{}})")
                lines.append(f"{KEPT}[{name!r}] = {reading}")
                if isinstance(value, str):
                    self._sent[name] = text
            lines.append(f"{name} = {KEPT}[{name!r}]")
        if lines:
            done = box.execute("\n".join(lines))
            if not done.success:
                raise CodeInterpreterError(f"a large variable could not be set: {done.error}")

    def _outcome(self, box: SyncSandbox, result: SandboxResult) -> Any:
        if result.state_lost:
            self._end(str(result.error))
        if result.error_type == FINAL:
            return FinalOutput(self._submitted)
        if result.kind is Outcome.OK:
            return result.stdout if result.value is None else last_value(box, result)
        if result.error_type == "SyntaxError":
            raise SyntaxError(f"Invalid Python syntax. message: {result.error}")
        if result.kind in (Outcome.ERROR, Outcome.EXITED):
            shown = [as_json(arg) for arg in result.error_args] or message_of(result)
            raise CodeExecutionError(f"{result.error_type or 'SystemExit'}: {shown}")
        raise CodeExecutionError(str(result.error))


def interpreter_factory(
    *, shared: str | None = None, **options: Any
) -> Callable[[], AtollInterpreter]:
    """Return a factory for dspy.RLM(interpreter_factory=...), with options of create_sandbox."""

    def make() -> AtollInterpreter:
        return AtollInterpreter(shared=shared, **options)

    make.__dict__["execution_instructions"] = AtollInterpreter.execution_instructions
    return make


def checked_name(name: str) -> str:
    """Return the name of a variable; CodeInterpreterError if it is not a valid one."""
    if not name.isidentifier() or keyword.iskeyword(name) or name in RESERVED:
        raise CodeInterpreterError(f"Invalid variable name: '{name}'")
    return name


def plain(name: str, value: Any) -> Any:
    """Return a variable as JSON data; CodeInterpreterError names a variable that cannot be sent."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, BaseModel):
        return plain(name, _dump_pydantic(value))
    if isinstance(value, dict):
        return {key: plain(name, item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = [plain(name, item) for item in value]
        return _sorted(items) if isinstance(value, set | frozenset) else items
    try:
        return plain(name, to_jsonable_python(value))
    except PydanticSerializationError:
        kind = type(value).__name__
        raise CodeInterpreterError(f"Unsupported value type: {kind} (variable {name})") from None


def _sorted(items: list[Any]) -> list[Any]:
    try:
        return sorted(items)
    except TypeError:
        return items


def as_text(value: Any) -> str:
    """Return a text itself, a container as JSON, and "" for values that are always small."""
    if isinstance(value, str):
        return value
    return json.dumps(value) if isinstance(value, list | dict) else ""


async def awaited(answer: Awaitable[Any]) -> Any:
    """Await an awaitable that is not a coroutine, for asyncio.run."""
    return await answer


def tool_result(value: Any) -> Any:
    """Return a tool's result as JSON data; as text if it cannot be expressed in JSON."""
    data = _make_jsonable(value)
    try:
        json.dumps(data, allow_nan=False)
    except (TypeError, ValueError):
        return str(data)
    return data


def last_value(box: SyncSandbox, result: SandboxResult) -> Any:
    """Return the value of the last line as JSON data; as text if JSON cannot express it."""
    value = result.value
    if isinstance(value, Opaque) and value.reason == TOO_LARGE:
        try:
            value = box.get_variable("_", plain=True)
        except VariableError:
            return value.repr
    return as_json(value)


def message_of(result: SandboxResult) -> str:
    """Return the message of an exception without arguments."""
    return (result.error or "").partition(": ")[2] or str(result.exit_code)
