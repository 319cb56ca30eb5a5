"""The verbs of a session, each declared once: its request, its answer, its effect on the session.

    client's method ──▶ request ──▶ connection ──▶ session ──▶ method of the sandbox with the guest

What the daemon and a fleet's node can be asked, what their clients send, which requests change a
session and which may be sent twice: all of that, and the table in docs/protocol.md, is made from
the classes here. A new verb is a class here, a method of BaseSandbox, and its work in the guest.
"""

from __future__ import annotations

import socket
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Self,
    TypeVar,
    dataclass_transform,
    get_args,
    get_type_hints,
)

from atoll.config import check_image
from atoll.errors import ConfigError
from atoll.files.base import CHANGING as CHANGING_FILES
from atoll.policy import check_positive
from atoll.rpc.passed_fds import Reply
from atoll.sandbox import command as commands
from atoll.sandbox.wire import answers
from atoll.sandbox.wire.answers import GuestAnswer, Opened
from atoll.types import (
    CodeFault,
    CommittedImage,
    ExecuteResponse,
    ListeningPort,
    ProcessInfo,
    ProcessOutput,
    SandboxResult,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.sandbox.base import BaseSandbox
    from atoll.sandbox.command import Command, CommandOptions

R = TypeVar("R")
RequestT = TypeVar("RequestT", bound="Request[Any]")
COMPRESSIONS = ("gzip", "zstd")
"""Of an image's layers."""
Params = Mapping[str, Any]
"""The fields of a request as they are sent: a JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Generic[R]):
    """A request to a session. Its fields cross a connection by their names."""

    verb: ClassVar[str]
    answer: ClassVar[answers.Answer[Any]] = answers.NOTHING
    changes: ClassVar[bool] = False
    """Whether the session's variables or files may be others afterwards."""
    repeatable: ClassVar[bool] = False
    """Whether it may be sent again if its answer was lost."""
    shape: ClassVar[list[tuple[str, tuple[type, ...], Any]]] = []
    """Name, types and default of each field; no types: any value."""

    def params(self) -> dict[str, Any]:
        """Return the fields to send: those that differ from their defaults."""
        params = {}
        for name, _, default in self.shape:
            if (value := getattr(self, name)) is not default:
                params[name] = value
        return params

    @classmethod
    def read(cls, params: Params) -> Self:
        """Return the request that was sent; ConfigError if a field is missing or mistyped."""
        given = {}
        for name, kinds, default in cls.shape:
            value = params.get(name, default)
            if kinds and type(value) not in kinds:
                given_kind = "left out" if value is MISSING else type(value).__name__
                raise ConfigError(f"{name} must be {_in_words(kinds)}, not {given_kind}")
            given[name] = value
        return cls(**given)

    @classmethod
    def may_change(cls, params: Params) -> bool:  # noqa: ARG003 - some verbs look at them
        """Return whether the session may be another one after a request with these fields."""
        return cls.changes

    @classmethod
    def may_repeat(cls, params: Params) -> bool:  # noqa: ARG003 - some verbs look at them
        """Return whether a request with these fields may be sent again if its answer was lost."""
        return cls.repeatable


def _kinds(hint: Any) -> tuple[type, ...]:
    if hint is Any:
        return ()
    members = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    kinds = tuple(getattr(member, "__origin__", member) for member in members)
    return (*kinds, int) if float in kinds else kinds  # a whole number is one too


def _in_words(kinds: tuple[type, ...]) -> str:
    names = {type(None): "null", float: "a number"}
    shown = [kind for kind in kinds if kind is not int or float not in kinds]
    return " or ".join(names.get(kind, f"a {kind.__name__}") for kind in shown)


VERBS: dict[str, type[Request[Any]]] = {}


@dataclass_transform(kw_only_default=True, frozen_default=True)
def verb(
    name: str,
    answer: answers.Answer[Any] = answers.NOTHING,
    *,
    changes: bool = False,
    repeatable: bool = False,
    table: dict[str, type[Request[Any]]] = VERBS,
) -> Callable[[type[RequestT]], type[RequestT]]:
    """Declare a verb: its name, how its result is sent, what it does to the session."""

    def declare(kind: type[RequestT]) -> type[RequestT]:
        kind = dataclass(frozen=True, slots=True, kw_only=True)(kind)
        kind.verb, kind.answer, kind.changes, kind.repeatable = name, answer, changes, repeatable
        hints = get_type_hints(kind)
        kind.shape = [
            (field.name, _kinds(hints[field.name]), field.default) for field in fields(kind)
        ]
        table[name] = kind
        return kind

    return declare


class SandboxRequest(Request[R]):
    """A request that is carried out by the sandbox that has the guest, in the session's turn."""

    __slots__ = ()

    @abstractmethod
    async def apply(self, box: BaseSandbox) -> R:
        """Carry it out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeRequest(SandboxRequest[R]):
    """A request that runs code, which may print and call the client's functions."""

    timeout_ms: float | None = None
    execution: str = ""
    """The client's name for it: calls of the guest carry it back."""


@verb("execute", answers.CELL, changes=True)
class Execute(CodeRequest[SandboxResult]):
    """Run a cell. A `key` that was used before returns that result again."""

    code: str
    key: str | None = None

    async def apply(self, box: BaseSandbox) -> SandboxResult:
        """Run the cell; the key is the session's business."""
        return await box.execute(self.code, timeout_ms=self.timeout_ms)

    @classmethod
    def may_repeat(cls, params: Params) -> bool:
        """Return whether it has a key."""
        return params.get("key") is not None


@verb("shell", answers.COMMAND, changes=True)
class Shell(CodeRequest[ExecuteResponse]):
    """Run a shell command, or a program with its arguments; `stdin` is base64."""

    command: str | None = None
    argv: list[str] | None = None
    cwd: str | None = None
    env: dict[str, str] | None = None
    stdin: str | None = None
    merge_stderr: bool = True

    @classmethod
    def of(cls, command: Command, timeout_ms: float | None, options: CommandOptions) -> Shell:
        """Return the request for a command as its caller gives it, checked."""
        check_positive("timeout_ms", timeout_ms)
        return cls(**commands.to_params(command, options), timeout_ms=timeout_ms)

    async def apply(self, box: BaseSandbox) -> ExecuteResponse:
        """Run the command."""
        command, options = commands.from_params(self.params())
        return await box.shell(command, timeout_ms=self.timeout_ms, **options)


@verb("validate", answers.VALIDITY, repeatable=True)
class Validate(SandboxRequest[CodeFault | None]):
    """Say whether code compiles in the guest's Python."""

    code: str

    async def apply(self, box: BaseSandbox) -> CodeFault | None:
        """Compile the code."""
        return await box.find_fault(self.code)


class VariableRequest(SandboxRequest[GuestAnswer]):
    """A question about variables."""

    __slots__ = ()

    async def apply(self, box: BaseSandbox) -> GuestAnswer:
        """Ask the guest."""
        return await box.ask_variable(self)


@verb("get_variable", answers.of_guest("`{found, value}`"), repeatable=True)
class GetVariable(VariableRequest):
    """Return a variable's value."""

    name: str
    plain: bool = False


@verb("has_variable", answers.of_guest("`{found}`"), repeatable=True)
class HasVariable(VariableRequest):
    """Say whether there is a variable of that name."""

    name: str


@verb("variables", answers.of_guest("`{variables, truncated}`"), repeatable=True)
class ListVariables(VariableRequest):
    """List the variables with type and size."""

    hidden: bool = False


@verb("set_variable", answers.of_guest("`{set}`"), changes=True, repeatable=True)
class SetVariable(VariableRequest):
    """Set a variable."""

    name: str
    value: Any


class ProcessRequest(Request[R]):
    """A request about processes: it does not wait for the cell that runs."""

    __slots__ = ()

    async def apply(self, box: BaseSandbox) -> R:
        """Ask the sandbox."""
        answer: R = await box.ask_process(self)
        return answer


@verb("start", answers.PROCESS)
class Start(ProcessRequest[ProcessInfo]):
    """Start a process beside the cells; `pty` is the rows and columns of its terminal."""

    command: str | None = None
    argv: list[str] | None = None
    cwd: str | None = None
    env: dict[str, str] | None = None
    stdin: bool = True
    pty: list[int] | None = None


@verb("processes", answers.PROCESSES, repeatable=True)
class ListProcesses(ProcessRequest[list[ProcessInfo]]):
    """List the processes, those that have ended last included."""


@verb("process_read", answers.OUTPUT, repeatable=True)
class ReadProcess(ProcessRequest[ProcessOutput]):
    """Return output from these offsets on, or that it has ended; wait for it so long.

    A stream without an offset is not returned. What was dropped is left out.
    """

    process: str
    stdout: int | None = None
    stderr: int | None = None
    wait_ms: float = 0


@verb("process_write", answers.WRITTEN)
class WriteProcess(ProcessRequest[int]):
    """Write `data`, which is base64, to its input, and close that at the `end`."""

    process: str
    data: str = ""
    end: bool = False
    wait_ms: float = 0


@verb("process_resize", repeatable=True)
class ResizeProcess(ProcessRequest[None]):
    """Change the size of its terminal: rows and columns."""

    process: str
    size: list[int]


@verb("process_signal")
class SignalProcess(ProcessRequest[None]):
    """Send a signal to its process group."""

    process: str
    signal: int


@verb("tools", repeatable=True)
class SetTools(Request[None]):
    """Offer the tools that are described, and no others."""

    tools: list[Any]


@verb("cancel")
class Cancel(Request[None]):
    """Interrupt what runs, at once; what waits for its turn will not run."""


@verb("checkpoint", answers.MARK)
class Checkpoint(SandboxRequest[str]):
    """Keep the present state, to roll back to."""

    async def apply(self, box: BaseSandbox) -> str:
        """Keep it in the sandbox."""
        return await box.checkpoint()


@verb("rollback", changes=True)
class Rollback(SandboxRequest[None]):
    """Restore a checkpoint."""

    mark: str

    async def apply(self, box: BaseSandbox) -> None:
        """Restore it."""
        await box.rollback(self.mark)


@verb("branches", answers.MARKS, repeatable=True)
class Branches(SandboxRequest[tuple[str, ...]]):
    """List the marks of the checkpoints."""

    async def apply(self, box: BaseSandbox) -> tuple[str, ...]:
        """Ask the sandbox."""
        return await box.branches()


@verb("save", answers.STATE, repeatable=True)
class Save(SandboxRequest[bytes]):
    """Return variables and files as bytes."""

    async def apply(self, box: BaseSandbox) -> bytes:
        """Save the session."""
        return await box.save()


@verb("commit", answers.COMMITTED)
class Commit(SandboxRequest[CommittedImage]):
    """Store the session's image with its changes as a layer on top, under the name `target`."""

    target: str
    push: bool = False
    compression: str = "gzip"

    @classmethod
    def of(cls, target: str, *, push: bool, compression: str) -> Commit:
        """Return the request as its caller gives it, checked; paths are made absolute."""
        if compression not in COMPRESSIONS:
            known = ", ".join(COMPRESSIONS)
            raise ConfigError(f"compression is one of {known}, not {compression!r:.60}")
        return cls(target=check_image(target), push=bool(push), compression=compression)

    async def apply(self, box: BaseSandbox) -> CommittedImage:
        """Commit the session."""
        return await box.commit(self.target, push=self.push, compression=self.compression)


@verb("folders", answers.FOLDERS, repeatable=True)
class Folders(Request[dict[str, int]]):
    """Return descriptors of the guest's folders, at once; the client works on them itself."""

    changing: bool = False


@verb("files", answers.AS_IT_IS)
class FileOperation(Request[Reply]):
    """Carry out an operation on the files of a fleet's session; contents are beside the message."""

    operation: str

    @classmethod
    def may_change(cls, params: Params) -> bool:
        """Return whether the operation writes."""
        return params.get("operation") in CHANGING_FILES

    @classmethod
    def may_repeat(cls, params: Params) -> bool:
        """Return whether the operation only reads."""
        return not cls.may_change(params)


class PortRequest(SandboxRequest[R]):
    """A request about the guest's servers, carried out at once, also while code runs."""

    __slots__ = ()


@verb("ports", answers.PORTS, repeatable=True)
class ListPorts(PortRequest[tuple[ListeningPort, ...]]):
    """List the TCP ports that the guest listens on, at once."""

    async def apply(self, box: BaseSandbox) -> tuple[ListeningPort, ...]:
        """Ask the sandbox."""
        return await box.ports()


@verb("connect", answers.CONNECTION, repeatable=True)
class Connect(PortRequest[socket.socket]):
    """Connect to a server on the guest's loopback, at once; return the connected socket."""

    port: int

    async def apply(self, box: BaseSandbox) -> socket.socket:
        """Connect."""
        return await box.connect(self.port)


@verb("pause", repeatable=True)
class Pause(Request[None]):
    """Freeze the guest after the call that runs; the next request thaws it."""


@verb("resume", repeatable=True)
class Resume(SandboxRequest[None]):
    """Let the guest run again."""

    async def apply(self, box: BaseSandbox) -> None:
        """Do nothing: the session's turn has thawed it."""


@verb("initialize", answers.OPENED, changes=True)
class Initialize(Request[Opened]):
    """Open a session with a configuration; without one, start an open session afresh.

    Memory files beside it: the context's, if `context` describes one, and the state's.
    """

    config: dict[str, Any] | None = None
    context: dict[str, Any] | None = None
    state: bool = False
    keep: bool = False
    durability: str = "none"
    auto_recover: bool = False
    fleet_session: str | None = None
    """The last three are for a fleet."""


@verb("attach", answers.OPENED)
class Attach(Request[Opened]):
    """Attach to the session that has this token."""

    token: str


@verb("fork", answers.OPENED)
class Fork(Request[Opened]):
    """Make a live clone, and give it the name `twin`."""

    twin: str


@verb("destroy")
class Destroy(Request[None]):
    """End the session."""


def may_change(name: str, params: Params) -> bool:
    """Return whether the session may be another one after a request."""
    return name in VERBS and VERBS[name].may_change(params)


def may_repeat(name: str, params: Params) -> bool:
    """Return whether a request may be sent again if its answer was lost."""
    return name in VERBS and VERBS[name].may_repeat(params)
