"""What a sandbox may use and how strongly it is kept in: limits, isolation levels, capabilities."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from atoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

MIB = 1 << 20
DEFAULT_FUEL = 2_000_000_000


class Isolation(IntEnum):
    """How strongly guest code is kept in; a higher level is a stronger one."""

    NONE = 0
    """It runs with all that the caller may do."""
    GUARDED = 1
    """Checked before it runs, in a plain process: a seat belt, not a wall."""
    CONFINED = 2
    """Own process under Landlock, seccomp and rlimits, in the host's namespaces."""
    JAILED = 3
    """Own namespaces, root, user, network; Landlock, seccomp and limits on top."""
    VIRTUAL = 4
    """No system call of the host reaches it: WebAssembly, or a virtual machine."""

    @classmethod
    def parse(cls, value: Isolation | str | int) -> Isolation:
        """Return the level that a name, a number or a level stands for; ConfigError."""
        try:
            return cls[value.upper()] if isinstance(value, str) else cls(value)
        except (KeyError, ValueError):
            names = ", ".join(map(str, cls))
            raise ConfigError(f"unknown isolation level {value!r}: use one of {names}") from None

    def __str__(self) -> str:
        """Return the name in lower case, as JSON and the command line spell it: `jailed`."""
        return self.name.lower()

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


class Capability(StrEnum):
    """What a backend can do; asked before use, shown by `atoll doctor`."""

    STATE = "state"
    STREAMING = "streaming"
    CANCEL = "cancel"
    BRIDGE = "bridge"
    FILES = "files"
    """A result names the files that its cell made or changed."""
    WORKSPACE = "workspace"
    """`files`: list, read, write, edit, search, upload, download."""
    HOST_FOLDER = "host-folder"
    SHARED_CONTEXT = "shared-context"
    INTERPRETER = "interpreter"
    SUBPROCESS = "subprocess"
    THREADS = "threads"
    SHELL = "shell"
    """shell: commands of bash, or of sh, beside the session's Python."""
    FORK = "fork"
    """fork, checkpoint, rollback, branches: live clones."""
    SAVE = "save"
    """save, and create_sandbox(state=...)."""
    IMPORTS = "imports"
    """Code may import, open and call whatever its Python has; without it, what a guard offers."""
    DISPLAY = "display"
    """Frames as HTML, figures as PNG."""
    LIMIT_TIME = "limit-time"
    LIMIT_MEMORY = "limit-memory"
    LIMIT_PROCESSES = "limit-processes"
    LIMIT_CPU = "limit-cpu"
    LIMIT_DISK = "limit-disk"
    LIMIT_FILE_SIZE = "limit-file-size"
    LIMIT_OUTPUT = "limit-output"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A host folder or file that the guest may see, read-only unless `writable`."""

    source: Path
    target: str
    writable: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", Path(self.source))
        parts = self.target.split("/")
        if not self.target.startswith("/") or ".." in parts or len(parts) < 2 or not parts[-1]:
            raise ConfigError(
                f"a mount's target must be an absolute path below /, without `..` and without a "
                f"slash at its end, not {self.target!r}"
            )
        if parts[1] in ("proc", "dev", "sys"):
            raise ConfigError(f"a mount cannot be in /{parts[1]}: {self.target!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionPolicy:
    """Limits of one sandbox. None means no limit, which has to be asked for."""

    memory_bytes: int | None = 512 * MIB
    """Memory of the guest's own, the context not counted."""
    max_processes: int | None = 64
    """Processes and threads at one time."""
    cpu_seconds: float | None = None
    """CPU time of one execution, over all its processes."""
    disk_bytes: int | None = 256 * MIB
    """What the private folders (/app, /tmp, /dev/shm, home) may hold together."""
    file_size_bytes: int | None = 128 * MIB
    """Size of any one file."""
    max_open_files: int = 1024
    stdout_max_bytes: int = 8 * MIB
    stderr_max_bytes: int = 8 * MIB
    fuel_budget: int | None = DEFAULT_FUEL
    """Instructions of one execution, where the backend counts them: `wasm` does."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables the guest gets; it inherits none of the host's."""
    mounts: tuple[Mount, ...] = ()

    def __post_init__(self) -> None:
        for name in (
            "memory_bytes", "max_processes", "cpu_seconds", "disk_bytes", "file_size_bytes",
            "max_open_files", "stdout_max_bytes", "stderr_max_bytes", "fuel_budget",
        ):  # fmt: skip
            check_positive(name, getattr(self, name))
        for name, value in self.env.items():
            if not name or "=" in name or "\0" in name + value:
                raise ConfigError(f"not an environment variable: {name!r}")
        object.__setattr__(self, "env", MappingProxyType(dict(self.env)))
        object.__setattr__(self, "mounts", tuple(self.mounts))

    def snapshot(self) -> dict[str, object]:
        """The limits as plain data, for logs; no environment value is in it."""
        return {
            "memory_bytes": self.memory_bytes,
            "max_processes": self.max_processes,
            "cpu_seconds": self.cpu_seconds,
            "disk_bytes": self.disk_bytes,
            "file_size_bytes": self.file_size_bytes,
            "stdout_max_bytes": self.stdout_max_bytes,
            "stderr_max_bytes": self.stderr_max_bytes,
            "fuel_budget": self.fuel_budget,
        }


def check_positive(name: str, value: float | None) -> None:
    """Raise ConfigError if a limit is not a positive number; None means no limit."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name} must be a number, not {type(value).__name__}")
    if not 0 < value < float("inf"):
        raise ConfigError(f"{name} must be positive and finite, not {value!r}")
