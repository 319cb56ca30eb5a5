"""Limits of a sandbox, levels of isolation, and the capabilities of backends."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from atoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")
MIB = 1 << 20
LARGEST = (1 << 63) - 1
"""The largest limit that the kernel takes."""
MAX_FOLDERS = 32
_FOLDER = re.compile(r"(/[^/\0\n]{1,255}){1,32}\Z")
_TAKEN = ("proc", "dev", "sys", "app", "tmp", ".box")
"""Where folders are writable already, or must not be."""
SYSTEM_FOLDERS = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc")


def check_keys(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise ConfigError for a key that is not known; the message names the closest one."""
    names = sorted(known)
    for key in given:
        if key not in names:
            close = difflib.get_close_matches(str(key), names, 1)
            hint = f": did you mean {close[0]!r}?" if close else ""
            raise ConfigError(f"unknown {what} {key!r}{hint or ': use one of ' + ', '.join(names)}")


def checked_keywords(what: str) -> Callable[[type[T]], type[T]]:
    """Make a dataclass raise ConfigError for an unknown keyword, with the closest one it has."""

    def decorate(cls: type[T]) -> type[T]:
        cls.__init__ = names_keywords(what)(cls.__init__)  # type: ignore[method-assign]
        return cls

    return decorate


def names_keywords(what: str) -> Callable[[F], F]:
    """Make a method raise ConfigError for an unknown keyword, with the closest one it takes."""

    def decorate(method: F) -> F:
        known = frozenset(inspect.signature(method).parameters) - {"self"}

        @functools.wraps(method)
        def checked(self: Any, *args: Any, **options: Any) -> Any:
            if not known.issuperset(options):
                check_keys(what, options, known)
            return method(self, *args, **options)

        return cast("F", checked)

    return decorate


class Isolation(IntEnum):
    """How strongly guest code is isolated from the host; a higher level is stronger."""

    NONE = 0
    """Not at all: guest code has all the caller's permissions."""
    GUARDED = 1
    """Code is checked before it runs, in an ordinary process: a seat belt, not a wall."""
    CONFINED = 2
    """A process under Landlock, seccomp and rlimits, in the host's namespaces."""
    JAILED = 3
    """Own namespaces, root, user and network, with Landlock, seccomp and limits on top."""
    KERNEL = 4
    """Guest code makes its system calls to a kernel of its own, which is itself in a jail."""
    VIRTUAL = 5
    """Guest code makes no system call on the host: WebAssembly, or a virtual machine."""

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
    """What a backend can do; `atoll doctor` shows it for each."""

    STATE = "state"
    STREAMING = "streaming"
    CANCEL = "cancel"
    BRIDGE = "bridge"
    FILES = "files"
    """Results name the files that the cell created or modified."""
    WORKSPACE = "workspace"
    """`files`: list, read, write, edit, search, move, delete, upload, download."""
    HOST_FOLDER = "host-folder"
    SHARED_CONTEXT = "shared-context"
    INTERPRETER = "interpreter"
    PACKAGES = "packages"
    """create_sandbox(packages=[...]): packages by name."""
    IMAGES = "images"
    """create_sandbox(image=...): a container image's files as the guest's root."""
    FOLDERS = "folders"
    """policy={"folders": ["/logs"]}: writable folders at any path."""
    SUBPROCESS = "subprocess"
    THREADS = "threads"
    SHELL = "shell"
    """`shell`: commands in bash or sh, next to the session's Python."""
    PROCESSES = "processes"
    """`start`, `processes`: programs beside the cells, with pipes or a terminal."""
    FORK = "fork"
    """fork, checkpoint, rollback, branches: live clones."""
    SAVE = "save"
    """save, and create_sandbox(state=...)."""
    IMPORTS = "imports"
    """Code may import and open anything its Python has; without it, only what a guard allows."""
    NETWORK = "network"
    """`network=`: HTTP clients in the guest reach the hosts that are named, through a proxy."""
    FETCH = "fetch"
    """`network=`: guest code calls `fetch(url)` for the hosts that are named."""
    PORTS = "ports"
    """port, ports, connect: servers in the guest, reached from outside."""
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
    """A host folder or file that the guest sees at `target`, read-only unless `writable`."""

    source: Path
    target: str
    writable: bool = False

    def __post_init__(self) -> None:
        paths: tuple[object, object] = (self.source, self.target)
        if not isinstance(paths[0], str | Path) or not isinstance(paths[1], str):
            raise ConfigError(f"a mount takes two paths, not {paths[0]!r} and {paths[1]!r}")
        for path in (str(self.source), self.target):
            if "\0" in path:
                raise ConfigError(f"a path of a mount contains a zero byte: {path!r:.200}")
        object.__setattr__(self, "source", Path(self.source))
        parts = self.target.split("/")
        if not self.target.startswith("/") or ".." in parts or len(parts) < 2 or not parts[-1]:
            raise ConfigError(
                f"a mount's target must be an absolute path below /, without `..` and without a "
                f"slash at its end, not {self.target!r}"
            )
        if parts[1] in ("proc", "dev", "sys"):
            raise ConfigError(f"a mount cannot be in /{parts[1]}: {self.target!r}")
        if self.target in SYSTEM_FOLDERS:
            raise ConfigError(
                f"a mount cannot replace {self.target}, where the guest's programs are: choose "
                f"another target, such as /data"
            )

    @classmethod
    def of(cls, given: Mount | Mapping[str, Any] | tuple[Any, ...]) -> Mount:
        """Return a mount for what a caller gave: one, a dict, or (source, target[, writable])."""
        if isinstance(given, Mount):
            return given
        if isinstance(given, Mapping):
            check_keys("mount field", given, ("source", "target", "writable"))
            return cls(**{"source": None, "target": None, **given})
        if isinstance(given, tuple | list) and len(given) in (2, 3):
            return cls(source=given[0], target=given[1], writable=bool(given[2:] and given[2]))
        raise ConfigError(
            f"a mount is a Mount, a dict or (source, target[, writable]), not {given!r:.200}"
        )


@checked_keywords("policy field")
@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionPolicy:
    """Limits of one sandbox. None means no limit."""

    memory_bytes: int | None = 512 * MIB
    """Memory of the guest; a shared context does not count."""
    max_processes: int | None = 256
    """Processes and threads at one time."""
    cpu_seconds: float | None = None
    """CPU time of one execution, summed over its processes."""
    disk_bytes: int | None = 256 * MIB
    """Size of the private folders (/app, /tmp, /dev/shm, home) together."""
    file_size_bytes: int | None = 128 * MIB
    """Size of any one file."""
    max_open_files: int = 1024
    stdout_max_bytes: int = 8 * MIB
    stderr_max_bytes: int = 8 * MIB
    fuel_budget: int | None = None
    """Instructions of one execution, in the `wasm` backend, which counts them in any case."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the guest; it inherits none of the host's."""
    mounts: tuple[Mount, ...] = ()
    """Host folders and files in the guest: Mounts, dicts, or (source, target[, writable])."""
    folders: tuple[str, ...] = ()
    """Writable folders at paths such as /logs, besides /app and /tmp; `disk_bytes` counts them."""

    def __post_init__(self) -> None:
        for name in (
            "memory_bytes",
            "max_processes",
            "cpu_seconds",
            "disk_bytes",
            "file_size_bytes",
            "max_open_files",
            "stdout_max_bytes",
            "stderr_max_bytes",
            "fuel_budget",
        ):
            check_positive(name, getattr(self, name))
        for name, value in self.env.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise ConfigError(f"env must map str to str, not {name!r:.100} to {value!r:.100}")
            if not name or "=" in name or "\0" in name + value:
                raise ConfigError(f"not an environment variable: {name!r}")
            try:
                os.fsencode(name + value)
            except UnicodeEncodeError:
                raise ConfigError(f"env[{name!r:.100}] is a text that has no bytes") from None
        object.__setattr__(self, "env", MappingProxyType(dict(self.env)))
        if self.mounts != ():
            object.__setattr__(self, "mounts", _mounts(self.mounts))
        if self.folders != ():
            object.__setattr__(self, "folders", _folders(self.folders))

    @classmethod
    def of(cls, given: ExecutionPolicy | Mapping[str, Any] | None) -> ExecutionPolicy:
        """Return a policy for what a caller gave: one, a dict of its fields, or None."""
        if given is None:
            return cls()
        if isinstance(given, ExecutionPolicy):
            return given
        if not _is_mapping(given):
            kind = type(given).__name__
            raise ConfigError(f"policy must be an ExecutionPolicy or a dict, not {kind}")
        return cls(**given)

    def snapshot(self) -> dict[str, object]:
        """Return the limits as plain data for logs, without the environment."""
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


def _is_mapping(given: object) -> bool:
    return isinstance(given, Mapping)


def _mounts(given: Any) -> tuple[Mount, ...]:
    if isinstance(given, str | Mount | Mapping) or not hasattr(given, "__iter__"):
        raise ConfigError(
            f"mounts must be a list such as [('data', '/data')], not {type(given).__name__}"
        )
    mounts = tuple(Mount.of(item) for item in given)
    targets = [item.target for item in mounts]
    if again := next((target for target in targets if targets.count(target) > 1), None):
        raise ConfigError(f"two mounts have the target {again!r}: give one another target")
    return mounts


def _folders(given: Any) -> tuple[str, ...]:
    """Return paths of folders, each once; ConfigError for one that cannot be a folder's."""
    if isinstance(given, str) or not hasattr(given, "__iter__"):
        raise ConfigError(f"folders must be a list such as ['/logs'], not {given!r:.100}")
    folders: dict[str, None] = {}
    for path in given:
        if not isinstance(path, str) or not _FOLDER.match(path) or {".", ".."} & {*path.split("/")}:
            raise ConfigError(
                f"a folder is an absolute path below /, without `..` and without a slash at its "
                f"end, not {path!r:.200}"
            )
        if path.split("/")[1] in _TAKEN or path in (*SYSTEM_FOLDERS, "/home"):
            raise ConfigError(
                f"{path} cannot be a folder of its own: choose another, such as /logs"
            )
        folders[path] = None
    if len(folders) > MAX_FOLDERS:
        raise ConfigError(f"a sandbox has at most {MAX_FOLDERS} folders, not {len(folders)}")
    within = [a for a in folders for b in folders if a.startswith(f"{b}/")]
    if within:
        raise ConfigError(f"{within[0]} is in another of the folders: name that one alone")
    return tuple(folders)


def check_positive(name: str, value: float | None) -> None:
    """Raise ConfigError if a limit is not a positive number; None means no limit."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name} must be a number, not {type(value).__name__}")
    if not 0 < value < float("inf"):
        raise ConfigError(f"{name} must be positive and finite, not {value!r}")
    if value > LARGEST:
        raise ConfigError(f"{name} must be at most {LARGEST:,}: leave the limit out with None")
