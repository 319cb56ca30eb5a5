"""An executor for smolagents: the code of a CodeAgent runs in a sandbox, its tools on the host.

    agent = CodeAgent(tools=[...], model=model, executor=AtollExecutor())

SECURITY: code calls tools by name through the bridge, so their source and credentials never enter
the sandbox. The host unpickles nothing from the sandbox. Images are transferred as PNG.
"""

from __future__ import annotations

import functools
import inspect
import io
from typing import TYPE_CHECKING, Any, Self

from atoll.errors import VariableError
from atoll.guest.shared.values import Opaque
from atoll.integrations.common import missing, take_box
from atoll.policy import Capability
from atoll.types import stderr_with_error

try:
    import PIL.Image
    from smolagents.local_python_executor import CodeOutput, PythonExecutor
    from smolagents.monitoring import AgentLogger
    from smolagents.utils import AgentError
except ImportError as exc:
    raise ImportError(missing("smolagents", "smolagents")) from exc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from atoll.policy import Isolation
    from atoll.sandbox.blocking import SyncSandbox
    from atoll.types import SandboxResult

NEEDED = frozenset({Capability.STATE, Capability.BRIDGE, Capability.IMPORTS})
IMAGE = "atoll:png"
"""Marks a pair of this text and the bytes of an image."""
_FINAL, _ANSWER, _HOST = "_AtollFinal", "_atoll_answer", "_atoll_host_"
_PRELUDE = f"""\
class {_FINAL}(BaseException): pass

def _atoll_pack(value):
    import sys
    images = sys.modules.get("PIL.Image")
    if images and isinstance(value, images.Image):
        import io
        data = io.BytesIO()
        value.save(data, format="PNG")
        return ("{IMAGE}", data.getvalue())
    if type(value) in (list, tuple):
        return type(value)(map(_atoll_pack, value))
    return {{k: _atoll_pack(v) for k, v in value.items()}} if type(value) is dict else value

def _atoll_unpack(value):
    if type(value) is tuple and len(value) == 2 and value[0] == "{IMAGE}":
        import io, PIL.Image
        return PIL.Image.open(io.BytesIO(value[1]))
    if type(value) in (list, tuple):
        return type(value)(map(_atoll_unpack, value))
    return {{k: _atoll_unpack(v) for k, v in value.items()}} if type(value) is dict else value

def _atoll_wrap(name, tool):
    import functools
    @functools.wraps(tool)
    def call(*args, **kwargs):
        return _atoll_unpack(tool(*_atoll_pack(args), **_atoll_pack(kwargs)))
    call.__name__ = call.__qualname__ = name
    return call

def _atoll_finish(*args, **kwargs):
    global {_ANSWER}
    {_ANSWER} = (_atoll_pack(args), _atoll_pack(kwargs))
    raise {_FINAL}
"""


class AtollExecutor(PythonExecutor):  # type: ignore[misc]
    """Runs an agent's code in one sandbox, whose variables last until cleanup().

    `box` is an open sandbox, which its owner destroys; without it one is opened with the `options`
    of create_sandbox. `logger` is the agent's, for errors.
    """

    def __init__(
        self,
        box: SyncSandbox | None = None,
        *,
        logger: Any = None,
        **options: Any,
    ) -> None:
        self._owned = box is None
        self._box = take_box(box, options, NEEDED)
        self.logger = AgentLogger() if logger is None else logger
        self._answer: Callable[..., Any] | None = None
        self._run(_PRELUDE)

    @property
    def isolation(self) -> Isolation:
        """How strongly the code is isolated from the host."""
        return self._box.isolation

    def send_tools(self, tools: Mapping[str, Any]) -> None:
        """Let the code call these tools, which run on the host, and no others."""
        given = dict(tools)
        self._answer = given.pop("final_answer", None)
        self._box.set_tools({_HOST + name: _handler(name, tool) for name, tool in given.items()})
        lines = [f"{name} = _atoll_wrap({name!r}, {_HOST}{name})" for name in given]
        if self._answer is not None:
            lines.append("final_answer = _atoll_finish")
        self._run("\n".join(lines))

    def send_variables(self, variables: Mapping[str, Any]) -> None:
        """Set variables; VariableError names the one that cannot be sent."""
        for name, value in variables.items():
            packed = _pack(value)
            self._box.set_variable(name, packed)
            if packed is not value:
                self._run(f"{name} = _atoll_unpack({name})")

    def __call__(self, code_action: str) -> CodeOutput:
        """Run code; raise AgentError with the traceback if it fails."""
        result = self._box.execute(code_action)
        if result.error_type == _FINAL and self._answer is not None:
            args, kwargs = self._box.get_variable(_ANSWER)
            answer = self._answer(*_unpack(args), **_unpack(kwargs))
            return CodeOutput(output=answer, logs=result.stdout, is_final_answer=True)
        if not result.success:
            said = stderr_with_error(result.stderr, result.error, result.kind)
            text = f"{result.stdout}\nExecuting code yielded an error:\n{said}"
            raise AgentError(text, self.logger)
        return CodeOutput(output=self._output(result), logs=result.stdout, is_final_answer=False)

    def cleanup(self) -> None:
        """End the sandbox, if it was opened here. Calling it twice is harmless."""
        if self._owned:
            self._box.destroy()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.cleanup()

    def _run(self, code: str) -> None:
        done = self._box.execute(code)
        if not done.success:
            raise AgentError(f"the sandbox could not be set up: {done.error}", self.logger)

    def _output(self, result: SandboxResult) -> Any:
        """Return the last value: an image, a data frame, plain data, or its text."""
        images = [display.data for display in result.displays if display.media_type == "image/png"]
        if images:
            return PIL.Image.open(io.BytesIO(images[0]))
        if result.value is None or isinstance(result.value, str | int | float):
            return result.value
        try:
            return self._box.get_variable("_")
        except VariableError:
            return result.value_repr if isinstance(result.value, Opaque) else result.value


def _handler(name: str, tool: Any) -> Callable[..., Any]:
    """Return a function with the tool's inputs as parameters and its description as docstring."""
    inputs = getattr(tool, "inputs", None)
    if not callable(tool) or not isinstance(inputs, dict):
        raise TypeError(f"{name} is a {type(tool).__name__}, not a tool of smolagents")

    @functools.wraps(tool.forward if hasattr(tool, "forward") else tool)
    def call(*args: Any, **kwargs: Any) -> Any:
        return _pack(tool(*_unpack(args), **_unpack(kwargs)))

    named, empty = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
    required = [field for field, facts in inputs.items() if not facts.get("nullable")]
    optional = [parameter for parameter in inputs if parameter not in required]
    parameters = [
        inspect.Parameter(parameter, named, default=empty if parameter in required else None)
        for parameter in (*required, *optional)
    ]
    call.__dict__["__signature__"] = inspect.Signature(parameters)
    call.__doc__ = getattr(tool, "description", None)
    call.__dict__.pop("__wrapped__", None)
    return call


def _pack(value: Any) -> Any:
    """Return the value with images as marked PNG; the same object if there are none."""
    if isinstance(value, PIL.Image.Image):
        data = io.BytesIO()
        value.save(data, format="PNG")
        return (IMAGE, data.getvalue())
    if type(value) is dict:
        return _same(value, {key: _pack(item) for key, item in value.items()})
    if type(value) in (list, tuple):
        return _same(value, type(value)(map(_pack, value)))
    return value


def _same(value: Any, packed: Any) -> Any:
    before, other = (
        list(some.values()) if type(some) is dict else some for some in (value, packed)
    )
    return value if all(a is b for a, b in zip(before, other, strict=True)) else packed


def _unpack(value: Any) -> Any:
    if type(value) is tuple and len(value) == 2 and value[0] == IMAGE:
        return PIL.Image.open(io.BytesIO(value[1]))
    if type(value) is dict:
        return {key: _unpack(item) for key, item in value.items()}
    return type(value)(map(_unpack, value)) if type(value) in (list, tuple) else value
