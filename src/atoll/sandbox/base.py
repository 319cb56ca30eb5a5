"""The async sandbox: what every backend offers, and what a backend without a power answers."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, TypedDict, TypeVar, Unpack

from atoll.errors import ConfigError, SandboxClosedError, UnsupportedError
from atoll.files.base import NoFiles
from atoll.guest.shared.rpc import MAX_MESSAGE_BYTES
from atoll.log import SECURITY_EVENTS, SandboxLogger
from atoll.policy import Capability, ExecutionPolicy, Isolation, check_keys
from atoll.sandbox import command as commands
from atoll.sandbox import guard, verbs
from atoll.sandbox import process as processes
from atoll.sandbox import variables as guest_variables
from atoll.sandbox.command import encode_stdin
from atoll.sandbox.tools import by_name
from atoll.text.name_hints import SandboxHints
from atoll.types import CodeFault, Outcome, SandboxResult

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from atoll.config import Handler
    from atoll.files.base import Files
    from atoll.guest.shared.messages import Json
    from atoll.ports.forward import Forwards
    from atoll.sandbox.command import Command, CommandOptions
    from atoll.sandbox.process import Process, StartOptions
    from atoll.sandbox.wire.answers import GuestAnswer
    from atoll.types import CommittedImage, ExecuteResponse, ListeningPort, Preview, Variables

    Tools = Mapping[str, Handler] | Iterable[Any]
    ToolChange = Callable[[Mapping[str, Handler]], Mapping[str, Handler]]

R = TypeVar("R")
MAX_CODE_LENGTH = MAX_MESSAGE_BYTES // 12  # a character may take 12 bytes of JSON
MAX_PORT = 65_535
PREVIEW_SECONDS = 3600.0
QUICKLY_CHECKED = 20_000
"""Characters of code up to which a guard runs in the event loop; a thread would take longer."""
CLOSED = (
    "the sandbox is closed: destroy() was called, or its `with` block has ended. "
    "Open another one with create_sandbox(), or start this one again with initialize()"
)
NOT_COPIED = (
    "a sandbox cannot be pickled or copied: save() returns its state as bytes for "
    "create_sandbox(state=...), and fork() returns a live clone"
)
NOT_STARTED = "the sandbox is not started: call initialize(), or open one with create_sandbox()"


class ExecuteOptions(TypedDict, total=False):
    """What `execute` takes in some backends alone."""

    inject_setup: bool | None
    """In `wasm`: whether the cell may import from /app/site-packages."""
    stdin: str | bytes | None
    """In `native` and `gvisor`: what the cell and its children read from standard input."""
    script: bool
    """In `native` and `gvisor`: run the code as `python main.py` would; nothing runs after it."""


_BACKENDS_OF = {
    "inject_setup": ("wasm",),
    "stdin": ("native", "gvisor"),
    "script": ("native", "gvisor"),
}
"""The backends that take an option of `execute`."""


def check_options(backend: str, options: Mapping[str, Any]) -> None:
    """Raise ConfigError for an option that `execute` does not take, with the closest one."""
    check_keys("option of execute", options, ("timeout_ms", "key", *_BACKENDS_OF))
    for name, backends in _BACKENDS_OF.items():
        if backend not in backends and options.get(name) is not None:
            taken = " and ".join(map(repr, backends))
            raise ConfigError(f"{name} is an option of the backend {taken}, not of {backend!r}")


def cell_params(backend: str, options: ExecuteOptions) -> Json:
    """Return what the guest is to know of a cell's options, checked."""
    check_options(backend, options)
    params: Json = {}
    if options.get("inject_setup") is not None:
        params["setup"] = options["inject_setup"]
    if options.get("stdin") is not None:
        params["stdin"] = encode_stdin(options["stdin"])
    if options.get("script"):
        params["script"] = True
    return params


def check_code(code: str) -> None:
    """Raise ConfigError if the code is not a str, or too long for one message."""
    if not isinstance(code, str):
        raise ConfigError(
            f"code must be a str, not {type(code).__name__}"
            f"{': pass its read_text()' * hasattr(code, 'read_text')}"
        )
    if len(code) > MAX_CODE_LENGTH:
        raise ConfigError(f"the code has {len(code):,} characters; pass data as context instead")


def check_port(port: int) -> int:
    """Return a number of a TCP port; ConfigError for any other value."""
    if type(port) is not int or not 0 < port <= MAX_PORT:
        raise ConfigError(f"port must be a whole number from 1 to {MAX_PORT}, not {port!r:.50}")
    return port


class BaseSandbox(SandboxHints, ABC):
    """Runs guest code. An error in the code is a result; an error of the sandbox raises.

    It holds policy, workspace and logger; a backend implements `execute` and `validate_code`, and
    what its capabilities promise.
    """

    backend: ClassVar[str] = "custom"
    capabilities: ClassVar[frozenset[Capability]] = frozenset()
    runtime_memory: ClassVar[int] = 0
    """Bytes that the interpreter itself may take on top of `policy.memory_bytes`."""

    def __init__(
        self,
        policy: ExecutionPolicy | Mapping[str, Any] | None = None,
        workspace: Path | None = None,
        logger: SandboxLogger | None = None,
    ) -> None:
        self.policy = ExecutionPolicy.of(policy)
        self.workspace = workspace
        self.logger = logger or SandboxLogger()
        self._logs: Callable[[], bool] = getattr(self.logger, "listens", partial(bool, 1))
        """Whether executions are logged; by a logger of another class, always."""
        self._destroyed = False
        self._forwards: Forwards | None = None

    @abstractmethod
    async def execute(
        self, code: str, *, timeout_ms: float | None = None, key: str | None = None
    ) -> SandboxResult:
        """Run a cell; its variables are kept for the next one.

        `key` makes the call idempotent: a key that was used before returns that call's result.
        """

    @abstractmethod
    async def validate_code(self, code: str) -> bool:
        """Return whether the code compiles, without running it."""

    async def find_fault(self, code: str) -> CodeFault | None:
        """Return why the code does not compile, as far as the backend tells; None if it does."""
        return None if await self.validate_code(code) else CodeFault()

    @property
    def isolation(self) -> Isolation:
        """How strongly the guest is isolated: not at all, unless the backend says otherwise."""
        return Isolation.NONE

    async def initialize(self, context: Any = None) -> None:  # noqa: ARG002
        """Start the guest with `context` as its variable. A running guest is ended first."""
        self._destroyed = False

    async def get_variable(self, name: str, default: Any = None, *, plain: bool = False) -> Any:
        """Return the value of a guest variable, or `default` if the variable does not exist.

        VariableError if the value is too large or of a type that cannot be sent; the message says
        what to do. With `plain`, arrays and data frames arrive as lists and dicts, and an object
        that cannot be sent as an Opaque.
        """
        request = verbs.GetVariable(name=guest_variables.check_name(name), plain=bool(plain))
        answer = await self.ask_variable(request)
        if not guest_variables.is_found(name, answer):
            return default
        if guest_variables.is_large(answer):  # others wait for the event loop
            return await asyncio.to_thread(guest_variables.decode, name, answer)
        return guest_variables.decode(name, answer)

    async def has_variable(self, name: str) -> bool:
        """Return whether the guest has a variable of that name, also if its value is None."""
        request = verbs.HasVariable(name=guest_variables.check_name(name))
        answer = await self.ask_variable(request)
        return guest_variables.is_found(name, answer)

    async def variables(self, *, hidden: bool = False) -> Variables:
        """List the guest's variables with type and size; `hidden` adds names with an underscore."""
        answer = await self.ask_variable(verbs.ListVariables(hidden=bool(hidden)))
        return guest_variables.read_listing(answer)

    async def set_variable(self, name: str, value: Any) -> None:
        """Set a guest variable: plain data, dates, numpy arrays, pandas frames.

        VariableError if the value cannot be sent; the message says what to do.
        """
        name = guest_variables.check_new_name(name)
        request = verbs.SetVariable(name=name, value=guest_variables.encode(name, value))
        answer = await self.ask_variable(request)
        if answer.get("set") is not True:
            raise guest_variables.cannot_set(name, "the guest did not take it")

    async def ask_variable(self, request: verbs.VariableRequest) -> GuestAnswer:
        """Ask the guest about a variable; a backend without state has none to ask about."""
        self._require_open()
        if isinstance(request, verbs.SetVariable):
            raise UnsupportedError(self.backend, "set variables")
        return {"found": False, "variables": []}

    @property
    def tools(self) -> Mapping[str, Handler]:
        """The host functions that guest code may call now, by name."""
        return {}

    async def add_tool(self, tool: Handler, *, name: str | None = None) -> None:
        """Let guest code call a function from now on; one of the same name is replaced."""
        added = by_name([tool] if name is None else {name: tool})
        await self._change_tools(lambda present: {**present, **added})

    async def remove_tool(self, name: str) -> None:
        """Take a tool from guest code; ConfigError if none has this name."""

        def without(present: Mapping[str, Handler]) -> dict[str, Handler]:
            if name not in present:
                known = ", ".join(sorted(present)) or "none"
                raise ConfigError(f"there is no tool {name!r:.100} to remove; there are: {known}")
            return {known: present[known] for known in present if known != name}

        await self._change_tools(without)

    async def set_tools(self, tools: Tools) -> None:
        """Let guest code call these functions and no others."""
        wanted: dict[str, Handler] = dict(by_name(tools))
        await self._change_tools(lambda _: wanted)

    async def _change_tools(self, change: ToolChange) -> None:  # noqa: ARG002
        """Put what `change` makes of the present tools in their place."""
        self._require_open()
        raise UnsupportedError(self.backend, "add tools to a live session")

    async def cancel(self) -> None:
        """Interrupt the running cell or command. Does nothing if none runs, or without CANCEL."""

    @property
    def files(self) -> Files:
        """The guest's files: list, read, write, edit, search, move, delete, upload, download.

        Using them is an UnsupportedError in a backend without WORKSPACE.
        """
        return NoFiles(self.backend, self._require_open)

    async def shell(
        self,
        command: Command,  # noqa: ARG002
        *,
        timeout_ms: float | None = None,  # noqa: ARG002
        **options: Unpack[CommandOptions],  # noqa: ARG002
    ) -> ExecuteResponse:
        """Run a shell command in the working folder, under the same isolation and limits.

        A list is a program with its arguments, and no shell. `options` are those of
        CommandOptions: cwd, env, stdin, merge_stderr. UnsupportedError without SHELL.
        """
        raise self._unsupported(Capability.SHELL)

    async def start(self, command: Command, **options: Unpack[StartOptions]) -> Process:
        """Start a process beside the cells, under the same isolation and limits.

        A list is a program with its arguments, and no shell. `options` are those of StartOptions:
        cwd, env, stdin, pty. It ends with the sandbox. UnsupportedError without PROCESSES.
        """
        request = processes.start_request(command, options)
        self.logger.log_execution_start("process", self.policy, commands.shown(command))
        return processes.Process(self, await self.ask_process(request))

    async def processes(self) -> list[Process]:
        """Return the processes that were started, those that have ended last included."""
        infos = await self.ask_process(verbs.ListProcesses())
        return [processes.Process(self, info) for info in infos]

    async def ask_process(self, request: verbs.ProcessRequest[R]) -> R:  # noqa: ARG002
        """Carry out a request about processes."""
        raise self._unsupported(Capability.PROCESSES)

    async def fork(self) -> BaseSandbox:
        """Return a live clone with the same variables and files; the two are independent.

        UnsupportedError in a backend without FORK, as for checkpoint, rollback and branches.
        """
        raise self._unsupported(Capability.FORK)

    async def checkpoint(self) -> str:
        """Keep the session's present state, and return the mark to roll back to."""
        raise self._unsupported(Capability.FORK)

    async def rollback(self, mark: str) -> None:  # noqa: ARG002
        """Restore the session to the checkpoint; the checkpoint stays usable."""
        raise self._unsupported(Capability.FORK)

    async def branches(self) -> tuple[str, ...]:
        """Return the marks of the checkpoints that are kept, oldest first."""
        raise self._unsupported(Capability.FORK)

    async def ports(self) -> tuple[ListeningPort, ...]:
        """List the TCP ports that the guest listens on, lowest first; also while a cell runs.

        UnsupportedError in a backend without PORTS, as for port and connect.
        """
        raise self._unsupported(Capability.PORTS)

    async def connect(self, port: int) -> socket.socket:  # noqa: ARG002
        """Return a blocking socket that is connected with a server on the guest's loopback.

        The caller closes it. PortError if nothing listens there.
        """
        raise self._unsupported(Capability.PORTS)

    async def port(self, port: int, *, local_port: int | None = None) -> str:
        """Return the URL of a listener on this machine's loopback that leads to a guest's port.

        It listens on `local_port`, or on a free one, until the sandbox is closed. Each of its
        connections is one in the guest.
        """
        if Capability.PORTS not in self.capabilities:
            raise self._unsupported(Capability.PORTS)
        self._require_open()
        if self._forwards is None:
            from atoll.ports.forward import Forwards  # noqa: PLC0415 - most sandboxes have none

            self._forwards = Forwards()
        wanted = 0 if local_port is None else check_port(local_port)
        return self._forwards.url(check_port(port), self.connect, wanted)

    async def expose(
        self,
        port: int,  # noqa: ARG002
        *,
        seconds: float = PREVIEW_SECONDS,  # noqa: ARG002
        public: bool = False,  # noqa: ARG002
    ) -> Preview:
        """Have a service show a server in the guest to browsers; return the link.

        It is signed and valid for `seconds`; with `public`, anybody who knows it may visit it.
        UnsupportedError for a sandbox that is not a service's.
        """
        self._require_open()
        raise UnsupportedError(self.backend, "previews")

    async def _close_forwards(self) -> None:
        """Close the listeners of `port`."""
        if self._forwards is not None:
            await self._forwards.close()

    async def save(self) -> bytes:
        """Return variables and files as bytes for create_sandbox(state=...), on any machine.

        UnsupportedError in a backend without SAVE.
        """
        raise self._unsupported(Capability.SAVE)

    async def commit(
        self,
        target: str,  # noqa: ARG002
        *,
        push: bool = False,  # noqa: ARG002
        compression: str = "gzip",  # noqa: ARG002
    ) -> CommittedImage:
        """Make an image of the session's own and its changes, as a layer on top.

        `target` is a name in the store (`team/env:1`), which `push` also sends to its registry, or
        `oci:FOLDER`. Layers are packed by gzip or zstd. UnsupportedError in a backend without
        images.
        """
        self._require_open()
        raise UnsupportedError(self.backend, "commit a session as an image")

    async def destroy(self) -> None:
        """End the guest and free everything it used. Calling it again does nothing."""
        self._destroyed = True
        await self._close_forwards()

    def _require_open(self) -> None:
        """Raise SandboxClosedError, with what to do, once the sandbox was destroyed."""
        if self._destroyed:
            raise SandboxClosedError(CLOSED)

    def _unsupported(self, capability: Capability) -> UnsupportedError:
        self._require_open()
        return UnsupportedError(self.backend, capability)

    def __repr__(self) -> str:
        state = ", closed" if self._destroyed else ""
        return f"<{type(self).__name__}: {self.backend}, {self.isolation}{state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(NOT_COPIED)  # by copy and deepcopy too

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.destroy()

    async def _guarded(self, code: str, name: str | None) -> tuple[str, SandboxResult | None]:
        """Have the guard `name` check a cell; return what to run, and the result if it refuses."""
        if name is None:
            return code, None
        if len(code) <= QUICKLY_CHECKED:
            reading = guard.read(code, name)
        else:
            reading = await asyncio.to_thread(guard.read, code, name)
        violations = reading.violations
        if not reading.parsed and await self.validate_code(code):
            violations = (guard.unread(),)  # nothing that was not checked may run
        if not violations:
            return reading.code, None
        result = SandboxResult(
            kind=Outcome.REFUSED,
            error=guard.describe(violations),
            error_type=guard.ERROR_TYPE,
            exit_code=1,
            isolation=self.isolation,
        )
        self._log_execution_metrics(result)
        return code, result

    def _log_execution_metrics(self, result: SandboxResult) -> None:
        """Log a result; an outcome that hints at an attack is a security event as well."""
        if event := SECURITY_EVENTS.get(result.kind):
            self.logger.log_security_event(event, error=result.error)
        self.logger.log_execution_complete(result)


Sandbox = BaseSandbox
"""The name for annotations: every async sandbox is one."""
