"""What crosses the boundary to the caller: results of executions and what hangs on them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atoll.policy import Isolation


class Outcome(StrEnum):
    """How an execution ended."""

    OK = "ok"
    ERROR = "error"
    """The code raised."""
    EXITED = "exited"
    """The code called sys.exit (state kept), or ended its process (state lost)."""
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    MEMORY = "memory"
    """The sandbox was ended at its memory limit."""
    FUEL = "fuel"
    """The execution was ended when its fuel was used up."""
    CPU = "cpu"
    """The execution was ended at its CPU limit."""
    CRASHED = "crashed"
    """The process was ended by a signal."""
    REFUSED = "refused"
    """A guard refused the code: nothing of it ran."""
    BROKEN = "broken"
    """The process stopped speaking the protocol, and was ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndReport:
    """How a guest's process ended: its supervisor's word, which the guest has no part in."""

    exit: int | None = None
    signal: int | None = None
    out_of_memory: bool = False
    peak_memory: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A file in the working folder that an execution created or modified."""

    path: str
    size: int
    media_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Display:
    """A frame's HTML, a figure's PNG. The guest made it: never show it unescaped."""

    media_type: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxResult:
    """What one execution did."""

    kind: Outcome
    stdout: str = ""
    stderr: str = ""
    error: str | None = None
    """Type and message of what went wrong; None if nothing did."""
    error_type: str | None = None
    exit_code: int = 0
    duration_ms: float = 0.0
    cpu_ms: float | None = None
    value: Any = None
    """The last expression's value as a plain value (Opaque where it has no plain form)."""
    value_repr: str | None = None
    displays: tuple[Display, ...] = ()
    """The last value's richer forms, and figures that were open at the cell's end."""
    truncated: bool = False
    """Whether stdout or stderr was cut."""
    state_lost: bool = False
    """Whether the variables of earlier cells are gone: this cell lost them, or found them lost."""
    files_created: tuple[str, ...] = ()
    files_modified: tuple[str, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    fuel_consumed: int | None = None
    memory_used_bytes: int | None = None
    state: bytes | None = None
    """The session's saved state, where it was asked for: opaque bytes, never loaded on the host."""
    workspace_path: str | None = None
    """The host folder behind /app, if the caller gave one."""
    isolation: Isolation | None = None

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecuteResponse:
    """What a shell command printed, and how it ended."""

    output: str
    """stdout and stderr as they came."""
    exit_code: int | None = None
    """As shells say it: 124 if it took too long, 128 + N after signal N; None if nobody knows."""
    truncated: bool = False
    """Whether the middle of the output was left out."""
    error: str | None = None
    """Why it was ended from outside, or not run; None if it ended by itself."""
