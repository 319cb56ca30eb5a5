"""Results of executions and shell commands, and the listing of a guest's variables."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from atoll.text import markup, name_hints

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Mapping

    from atoll.network import NetworkUse
    from atoll.policy import Isolation


MAX_FAULT = 1000


class Outcome(StrEnum):
    """How an execution ended."""

    OK = "ok"
    ERROR = "error"
    """The code raised."""
    EXITED = "exited"
    """The code called sys.exit (state kept) or ended its process (state lost)."""
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    MEMORY = "memory"
    """The sandbox was killed at its memory limit."""
    FUEL = "fuel"
    """The execution was ended because its fuel was used up."""
    CPU = "cpu"
    """The execution was ended at its CPU limit."""
    CRASHED = "crashed"
    """The process was killed by a signal."""
    REFUSED = "refused"
    """A guard refused the code before it ran."""
    BROKEN = "broken"
    """The process broke the protocol and was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """A process beside a session's cells, as its supervisor saw it."""

    id: str
    pid: int
    command: str | list[str]
    started_at: float
    """By the clock of its machine, in seconds since 1970."""
    pty: bool = False
    running: bool = True
    exit_code: int | None = None
    """128 and the number of the signal that ended it, if one did."""
    signal: int | None = None

    @property
    def shown(self) -> str:
        """The command as one line."""
        return self.command if isinstance(self.command, str) else shlex.join(self.command)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOutput:
    """What a process has printed since a reader's last request."""

    info: ProcessInfo
    stdout: bytes = b""
    stdout_end: int = 0
    """The offset of the first byte behind these, among all that it has printed."""
    stderr: bytes = b""
    stderr_end: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndReport:
    """How a guest's process ended, as its supervisor saw it; the guest cannot forge this."""

    exit: int | None = None
    signal: int | None = None
    out_of_memory: bool = False
    peak_memory: int | None = None
    cpu_seconds: float | None = None
    """CPU time of all its processes; None without a control group."""

    def __str__(self) -> str:
        return f"exit code {self.exit}" if self.signal is None else f"signal {self.signal}"


class Usage(Protocol):
    """What a guest's processes have used, as the host measures it; None if not counted."""

    def cpu_seconds(self) -> float | None:
        """CPU time so far."""
        ...

    def peak_memory(self) -> int | None:
        """The most memory that was in use, in bytes."""
        ...

    def is_runnable(self) -> bool:
        """Whether one of its processes has a core, or waits for one; False for a crowd of them."""
        ...


class GuestProcess(Protocol):
    """What a session needs of the process that the guest runs in."""

    ended: asyncio.Future[EndReport]

    @property
    def usage(self) -> Usage:
        """What it has used so far, by the host's own measure."""
        ...

    def interrupt(self) -> None:
        """SIGINT for the guest."""

    def kill(self) -> None:
        """The end of the guest and of all it started."""

    async def cpu_seconds(self) -> float:
        """CPU time used so far."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeFault:
    """Why code does not compile, as the guest's Python says it."""

    line: int | None = None
    message: str = ""

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> CodeFault | None:
        """Return what a guest's answer says, checked; None if the code compiles."""
        if answer.get("valid") is True:
            return None
        line, message = answer.get("line"), answer.get("message")
        known = isinstance(line, int) and not isinstance(line, bool) and line > 0
        return cls(line=line if known else None, message=str(message or "")[:MAX_FAULT])


def validity(fault: CodeFault | None) -> dict[str, object]:
    """Return as JSON whether code compiles; if not, where and why."""
    if fault is None:
        return {"valid": True}
    return {"valid": False, "line": fault.line, "message": fault.message}


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A file in the working folder that an execution created or modified."""

    path: str
    size: int
    media_type: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Display:
    """A data frame's HTML, a figure's PNG. The guest made it: never show its HTML unescaped."""

    media_type: str
    data: bytes

    def __repr__(self) -> str:
        return f"Display({self.media_type}, {len(self.data):,} bytes)"

    def _repr_html_(self) -> str:
        """Show it in a notebook: images as such, HTML in an iframe that runs no script."""
        return markup.block(markup.display(self.media_type, self.data))


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A variable of a guest, as the guest describes it."""

    name: str
    type: str
    """The class's name, with its module if that is not `builtins` or the session's own."""
    size: int | None = None
    """Bytes that the object itself takes, without what it refers to; None if not known."""
    shape: tuple[int, ...] | None = None
    """Length of a text or container, shape of an array or data frame; None for other objects."""


class Variables(list[Variable]):
    """The variables of a guest, in the order in which they were set."""

    def __init__(self, variables: Iterable[Variable] = (), *, truncated: bool = False) -> None:
        super().__init__(variables)
        self.truncated = truncated
        """Whether there are more than are listed."""

    @property
    def names(self) -> list[str]:
        """The names alone."""
        return [item.name for item in self]

    def __str__(self) -> str:
        rows = [_HEADINGS, *(_row(item) for item in self)] if self else []
        widths = [max(map(len, column), default=0) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([*lines, *(["..."] if self.truncated else [])])

    def _repr_html_(self) -> str:
        """Show them as a table in a notebook."""
        cut = self.truncated or len(self) > markup.MAX_ROWS
        more = markup.note("there are more") if cut else ""
        rows = (_row(item) for item in self[: markup.MAX_ROWS])
        return markup.block(markup.table(_HEADINGS, rows), more)


_HEADINGS = ("name", "type", "shape", "bytes")


def _row(variable: Variable) -> tuple[str, str, str, str]:
    shape = "" if variable.shape is None else " x ".join(f"{length:,}" for length in variable.shape)
    return (
        variable.name,
        variable.type,
        shape,
        "" if variable.size is None else f"{variable.size:,}",
    )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SandboxResult(name_hints.NameHints):
    """What one execution printed, returned and changed. print() shows what a notebook would.

    `success` says whether the code ran to its end. A result is true in an `if` either way, as a
    subprocess.CompletedProcess is: `if result:` asks whether there is a result.
    """

    _guessed = name_hints.table(
        {
            "output out text logs": "stdout, or str(result) for all that a notebook would show",
            "traceback": "stderr",
            "returncode return_code status_code code": "exit_code",
            "result return_value data": "value",
            "ok is_success succeeded": "success",
            "exception err message": "error",
            "images plots figures": "displays",
            "to_dict dict as_dict model_dump json": "dataclasses.asdict(result)",
        }
    )
    kind: Outcome
    stdout: str = ""
    stderr: str = ""
    error: str | None = None
    """Type and message of the error; None without one."""
    error_type: str | None = None
    """The class of the exception, also of a SystemExit that is not an error; None without one."""
    error_args: tuple[Any, ...] = ()
    """The arguments of the exception, as plain data; one that cannot cross is an Opaque."""
    exit_code: int = 0
    duration_ms: float = 0.0
    cpu_ms: float | None = None
    value: Any = None
    """The value of the last expression as plain data: arrays as lists, frames as dicts of columns.

    A value that is too large, or not plain data, is an Opaque, which says so; get_variable("_")
    returns the value itself, or says how to get it.
    """
    value_repr: str | None = None
    displays: tuple[Display, ...] = ()
    """The last value as HTML or images, and the figures that were open at the cell's end."""
    truncated: bool = False
    """Whether stdout or stderr was cut."""
    state_lost: bool = False
    """Whether the variables of earlier cells are lost, by this cell or before it."""
    files_created: tuple[str, ...] = ()
    files_modified: tuple[str, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    fuel_consumed: int | None = None
    memory_used_bytes: int | None = None
    state: bytes | None = None
    """The session's saved state, if it was asked for: bytes that the host never unpickles."""
    workspace_path: str | None = None
    """The host folder behind /app, if the caller gave one."""
    isolation: Isolation | None = None
    image: str | None = None
    """The digest of the image that is the guest's root; None without one."""
    network: NetworkUse | None = None
    """The guest's requests since its last result; None without a network policy."""
    cold_start: str | None = None
    """Why a pool or daemon started this sandbox's guest instead of forking it off a warm zygote."""

    @property
    def success(self) -> bool:
        """Whether the code ran to its end, or left with exit code 0."""
        return self.kind is Outcome.OK or (
            self.kind is Outcome.EXITED and self.exit_code == 0 and not self.state_lost
        )

    @property
    def files(self) -> tuple[str, ...]:
        """Files created, then modified."""
        return self.files_created + self.files_modified

    def __str__(self) -> str:
        errors = stderr_with_error(self.stderr, self.error, self.kind)
        parts = (self.stdout, errors, self.value_repr or "")
        return "\n".join(part.rstrip("\n") for part in parts if part)

    def __repr__(self) -> str:
        facts = [self.kind.value]
        if self.stdout:
            facts.append(f"stdout={markup.short(self.stdout)}")
        if self.value_repr is not None:
            line = " ".join(self.value_repr[:400].split())
            facts.append(f"value={line[:80]}{'...' * (len(line) > 80)}")
        if self.error:
            facts.append(f"error={markup.short(self.error)}")
        if self.files:
            facts.append(f"files={markup.short(list(self.files))}")
        return f"SandboxResult({', '.join(facts)}, {self.duration_ms:.1f} ms)"

    def _repr_html_(self) -> str:
        """Show output, value, displays and error in a notebook."""
        rich = [markup.display(item.media_type, item.data) for item in _shown(self.displays)]
        value = "" if rich else self.value_repr or ""
        facts = [self.kind.value, f"{self.duration_ms:.1f} ms"]
        facts += [f"files: {', '.join(self.files)}"] if self.files else []
        return markup.block(
            markup.text(self.stdout),
            markup.text(stderr_with_error(self.stderr, self.error, self.kind), "#b00020"),
            markup.text(value),
            *rich,
            markup.note(" · ".join(facts)),
        )


_TOLD = (Outcome.ERROR, Outcome.CANCELLED)
"""How executions end whose traceback names their error."""


def stderr_with_error(stderr: str, error: str | None, kind: str) -> str:
    """Return stderr, and below it the error if the traceback there does not name it.

    A cell that is stopped at a limit has the traceback of a KeyboardInterrupt, as if a user had
    pressed Ctrl-C; only the error says which limit it was.
    """
    if not error or error in stderr or (stderr and kind in _TOLD):
        return stderr
    return f"{stderr.rstrip()}\n{error}" if stderr.strip() else error


def _shown(displays: tuple[Display, ...]) -> list[Display]:
    """Return the images, and of the last value's other forms the first one."""
    images = [display for display in displays if display.media_type == "image/png"]
    others = [display for display in displays if display.media_type != "image/png"]
    return others[:1] + images


@dataclass(frozen=True, slots=True, kw_only=True)
class ListeningPort:
    """A TCP port that a process of the guest listens on."""

    number: int
    address: str
    """The address that it listens on: 127.0.0.1, 0.0.0.0, ::1 or another of the guest's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedImage:
    """An image that commit() has made of a session."""

    image: str
    """Where it is, as it was asked for: create_sandbox(image=...) takes it."""
    digest: str
    """Of its manifest: sha256:..."""
    files: int
    """Files, folders and deletions in its new layer."""
    layer_bytes: int
    """Bytes of the files in that layer."""
    left_out: Mapping[str, int]
    """What is not in it: how many devices and sockets, for instance."""

    def __str__(self) -> str:
        return self.image


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """A port of a session that a service shows to browsers."""

    url: str
    token: str | None
    """What opens it, for programs: the header `atoll-preview`. None if anybody may visit it."""
    expires_at: float | None
    """When the token ends, as a time stamp."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ExecuteResponse(name_hints.NameHints):
    """What a shell command printed, and how it ended."""

    _guessed = name_hints.table(
        {
            "returncode return_code status_code code": "exit_code",
            "text logs": "output",
            "success ok": "exit_code == 0",
        }
    )
    output: str
    """stdout and stderr together, in the order in which they came.

    With merge_stderr=False: all of stdout, then all of stderr."""
    exit_code: int | None = None
    """As shells report it: 124 after a timeout, 128 + N after signal N; None if it is not known."""
    truncated: bool = False
    """Whether the middle of the output was left out."""
    error: str | None = None
    """Why it was killed or not run; None if it ended by itself."""
    network: NetworkUse | None = None
    """The guest's requests since its last result; None without a network policy."""
    stderr: str = ""
    """With merge_stderr=False: the text of stderr. Otherwise it is part of the output."""

    @property
    def stdout(self) -> str:
        """The output without what `stderr` has."""
        return self.output[: len(self.output) - len(self.stderr)]

    def __str__(self) -> str:
        error = self.error or ""
        parts = (self.output.rstrip("\n"), "" if error in self.output else error)
        return "\n".join(part for part in parts if part)

    def __repr__(self) -> str:
        error = f", error={markup.short(self.error)}" if self.error else ""
        output = f"output={markup.short(self.output)}"
        return f"ExecuteResponse(exit_code={self.exit_code}, {output}{error})"

    def _repr_html_(self) -> str:
        """Show output and exit code in a notebook."""
        facts = f"exit code {self.exit_code}" + (" · output cut" if self.truncated else "")
        error = markup.text(self.error or "", "#b00020")
        return markup.block(markup.text(self.output), error, markup.note(facts))
