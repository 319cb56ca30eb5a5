"""The objects that cross between host and guest, as types: at run time each is a plain dict.

A guest starts without `typing`, and a dict costs nothing to make or to encode, so the shapes are
for readers and for mypy. docs/protocol.md has the same requests.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypedDict, TypeVar

    Json = dict[str, Any]
    """Any JSON object."""
    Tagged = dict[str, Any]
    """A value that JSON does not have, with the tag of its kind: see shared/values."""
    Names = dict[str, Any]
    """Objects by their Python names: a namespace, keyword arguments."""

    T = TypeVar("T")
    """The type of an answer."""

    class ContextSource(TypedDict, total=False):
        """Where the context comes from: its value, or the shape of a text that is passed."""

        value: Any
        width: int
        length: int
        ascii: bool
        json: bool

    class AgentParams(TypedDict):
        """The settings of a guest in which a model explores its context."""

        context_len: int

    class InitializeParams(TypedDict, total=False):
        """The first request: the settings of a session."""

        env: dict[str, str]
        argv: list[str]
        stdin: bool
        paths: list[str]
        setup: bool
        tools: list[Json]
        network: Json
        memory_bytes: int | None
        workdir: str
        private_folder: bool
        context: ContextSource
        lazy: bool
        agent: AgentParams

    class Initialized(TypedDict):
        """The answer to the first request."""

        context_shared: bool

    class CodeParams(TypedDict, total=False):
        """A cell to run or to compile."""

        code: str
        setup: bool
        look_again: bool
        stdin: str
        script: bool

    class Outcome(TypedDict, total=False):
        """How a cell ended."""

        kind: str
        exit_code: int
        value: Any
        value_repr: str
        error: str
        error_type: str
        error_args: list[Any]
        displays: list[list[str]]
        files: Json

    class Fault(TypedDict, total=False):
        """Whether code compiles, or where and why not."""

        valid: bool
        line: int | None
        message: str

    class VariableParams(TypedDict, total=False):
        """A variable by its name; its value if it is set."""

        name: str
        plain: bool
        value: Any
        hidden: bool

    class Variable(TypedDict, total=False):
        """A variable, or the result of setting it."""

        found: bool
        value: Any
        set: bool
        interrupted: bool

    class ToolsParams(TypedDict):
        """The host's functions that guest code may call from now on."""

        tools: list[Json]

    class StateParams(TypedDict, total=False):
        """How a state is saved or restored."""

        max_bytes: int
        cloudpickle: str
        whole: bool
        replace: bool

    class ShellParams(TypedDict, total=False):
        """A command to run."""

        command: str
        argv: list[str]
        cwd: str
        env: dict[str, str]
        stdin: str
        merge_stderr: bool

    class CommandEnd(TypedDict, total=False):
        """How a command ended, or why it did not start."""

        exit_code: int | None
        error: str
        interrupted: bool

    class WorkspaceParams(TypedDict):
        """A file operation."""

        operation: str
        params: Any
        most: int
