"""The configuration of a sandbox, and the environment variables that Atoll reads."""

from __future__ import annotations

import builtins
import copy
import functools
import keyword
import os
import re
import stat
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import InitVar, dataclass, field, fields
from pathlib import Path
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any, Self, cast

from atoll.errors import ConfigError
from atoll.log import SandboxLogger
from atoll.network import NetworkPolicy
from atoll.policy import MIB, ExecutionPolicy, Isolation, check_positive, checked_keywords
from atoll.text import requirements

if TYPE_CHECKING:
    from collections.abc import Sequence

Handler = Callable[..., Any] | Callable[..., Awaitable[Any]]
LineCallback = Callable[[str], None]
OutputCallback = Callable[[str, str], None]

DEFAULT_TIMEOUT_MS = 600_000
_SWITCHES = dict.fromkeys(("", "true", "1", "yes", "on"), True)
_SWITCHES |= dict.fromkeys(("false", "0", "no", "off"), False)
MAX_REFERENCE = 4096
LOCAL_IMAGES = ("oci", "oci-archive", "docker-archive")
"""How references to images begin that are files of this machine."""
DEFAULT_STATE_MB = 50
DEFAULT_ENVIRONMENTS_MB = 10_240
DEFAULT_IMAGES_MB = 51_200
SHORTEST_KEY = 16
BACKENDS = ("auto", "native", "wasm", "gvisor", "daemon", "pyodide", "remote", "ray", "restricted")
GUARDS = ("ast", "restrictedpython")
PRELOADS = ("bare", "numeric", "full", "packages")
"""The tiers of libraries of a warm start; the last has imported the sandbox's `packages`."""
DURABILITIES = ("none", "periodic", "cell")
FLEET_PORT = 6379
WINDOWS_PIPE = r"\\.\pipe\rlm-daemon"
CROSSES, ENCODED, HANDLER, STREAM = "crosses", "encoded", "handler", "stream"
CALLER, BACKEND, POSITIVE = "caller", "backend", "positive"
"""Traits of an option. It has one of WAYS, from which every part that passes options on derives its
list: it goes to a daemon or service as it is, or in a form of its own; the guest calls it, or it is
called with what the guest prints; only the caller's side uses it, or only one backend. A value may
have to be a positive number besides."""
WAYS = (CROSSES, ENCODED, HANDLER, STREAM, CALLER, BACKEND)
_SENT, _ENCODED, _HANDLER, _STREAM, _CALLER, _BACKEND = ({trait: True} for trait in WAYS)
_SENT_NUMBER = {**_SENT, POSITIVE: True}
_NAME = re.compile(r"[A-Za-z_]\w*\Z")
BUILT_IN = frozenset(
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type | BuiltinFunctionType) or keyword.iskeyword(name)
).union(keyword.kwlist, ["context"])
"""Names that no tool may have: Python's own code would call the tool, or no code could."""


def max_state_from_environment() -> int:
    """Return the size limit of a saved state from STATE_MAX_SIZE_MB; 50 MiB without it."""
    return _bytes("STATE_MAX_SIZE_MB", DEFAULT_STATE_MB)


def _bytes(name: str, default_mb: int) -> int:
    """Return the bytes that a variable gives in MiB."""
    text = os.environ.get(name) or str(default_mb)
    try:
        size = int(float(text) * MIB)
    except (ValueError, OverflowError):
        raise ConfigError(f"{name} must be a number, not {text!r}") from None
    check_positive(name, size)
    return size


class _Default(int):
    """The default of an option, to tell it from the same value that a caller gives."""


@checked_keywords("option")
@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    """Everything that `create_sandbox` takes. EnvironmentConfig adds what an environment has.

    It is the table of options: what the daemon and the service are sent, what has to be positive
    and what a type checker accepts as keyword arguments follow from it, or are checked against it.
    """

    backend: str = field(default="", metadata=_CALLER)
    """One of BACKENDS; unset: `remote` with a URL or a key, else ATOLL_BACKEND, else `auto`."""
    url: str | None = field(default=None, metadata=_CALLER)
    """Where the `remote` backend finds `atoll serve`; unset: ATOLL_URL. For the `ray` backend, the
    HOST:PORT of a fleet's head; unset: ATOLL_FLEET, or 127.0.0.1:6379."""
    api_key: str | None = field(default=None, repr=False, metadata=_CALLER)
    """The key for it; unset: ATOLL_API_KEY."""
    context: Any = field(default=None, metadata=_ENCODED)
    """The guest's variable `context`: text, plain data, the Path of a text file, or a Context."""
    state: bytes | None = field(default=None, metadata=_ENCODED)
    """Bytes from save(): the session starts with those variables and files."""
    max_state_bytes: int = field(default_factory=max_state_from_environment, metadata=_SENT_NUMBER)
    """Size limit of a saved state, uncompressed; a larger one is neither saved nor restored."""
    min_isolation: Isolation | None = field(default=None, metadata=_ENCODED)
    """The weakest level to accept; unset: JAILED for `auto`, the backend's own level otherwise."""
    timeout_ms: float = field(default=_Default(DEFAULT_TIMEOUT_MS), metadata=_SENT_NUMBER)
    """Time limit of one execution."""
    max_output_length: int = field(default=1_000_000, metadata=_SENT_NUMBER)
    """Characters of stdout, and of stderr, in a result."""
    policy: ExecutionPolicy = field(default_factory=ExecutionPolicy, metadata=_ENCODED)
    """Limits, environment variables and mounts: an ExecutionPolicy, or a dict of its fields."""
    python: str | None = field(default=None, metadata=_ENCODED)
    """The guest's interpreter, such as a venv's; unset: the one that runs the host. In an image: a
    path of the image's, or `host` for this machine's; unset: the image's `python3`."""
    preload: str | None = field(default=None, metadata=_SENT)
    """Libraries that a warm start has imported, one of PRELOADS; unset: Atoll chooses."""
    packages: Sequence[str] = field(default=(), metadata=_SENT)
    """Packages by name, such as `duckdb==1.5`, or `@NAME` for an environment of `atoll env`."""
    allow_source: bool = field(default=False, metadata=_SENT)
    """Whether packages without a wheel are built, in a jail: that runs their build code."""
    image: str | None = field(default=None, metadata=_SENT)
    """A container image whose files are the guest's root, such as `python:3.12-slim` or
    `oci:folder`; unset: the host's system. The interpreter is then the image's."""
    writable_root: bool = field(default=False, metadata=_SENT)
    """Whether the guest may change its copy of the image's files, within `disk_bytes`."""
    user: str | None = field(default=None, metadata=_SENT)
    """A user of the image that the guest is seen as, by name or number; `image`: its USER; unset:
    `guest`, 1000. There is one user, and root has no rights."""
    workdir: str | None = field(default=None, metadata=_SENT)
    """A folder of the image where cells and commands start; `image`: its WORKDIR; unset: /app."""
    entrypoint: bool = field(default=False, metadata=_SENT)
    """Whether the image's ENTRYPOINT and CMD run as a process beside the cells."""
    wasm_binary_path: Path | None = field(default=None, metadata=_BACKEND)
    """A WebAssembly component for the `wasm` backend; unset: bin/python.wasm in the current folder
    if there is one, else the one that Atoll builds."""
    inject_setup: bool = field(default=True, metadata=_BACKEND)
    """Whether the `wasm` backend imports packages from /app/site-packages."""
    index_url: str | Sequence[str] | None = field(default=None, metadata=_BACKEND)
    """Where to get Pyodide: a URL or folder, or several, of which the first that works is used."""
    use_worker: bool = field(default=True, metadata=_BACKEND)
    """Whether Pyodide runs in a thread of its own, which can be interrupted."""
    workspace: Path | None = field(default=None, metadata=_ENCODED)
    """A host folder that is the guest's /app; unset: a private one, deleted at the end."""
    on_stdout: LineCallback | None = field(default=None, metadata=_STREAM)
    on_stderr: LineCallback | None = field(default=None, metadata=_STREAM)
    on_output: OutputCallback | None = field(default=None, metadata=_STREAM)
    """Called with `stdout` or `stderr` and each piece of text as it comes, not line by line."""
    on_stdin: Handler | None = field(default=None, metadata=_HANDLER)
    """Called with a number of bytes: returns up to that many bytes of the guest's standard input,
    b"" at its end. Unset: the guest has no standard input."""
    argv: Sequence[str] | None = field(default=None, metadata=_SENT)
    """The guest's sys.argv; unset: what its interpreter starts with."""
    on_llm_query: Handler | None = field(default=None, metadata=_HANDLER)
    on_rlm_query: Handler | None = field(default=None, metadata=_HANDLER)
    tools: Mapping[str, Handler] = field(default_factory=dict, metadata=_ENCODED)
    """Host functions that guest code may call, by name."""
    max_concurrency: int = field(default=32, metadata=_SENT_NUMBER)
    """Calls of one batch that run on the host at the same time."""
    logger: SandboxLogger = field(default_factory=SandboxLogger, metadata=_CALLER)
    lazy_queries: bool = field(default=False, metadata=_SENT)
    """Whether llm_query returns a promise, so that a loop of queries runs concurrently."""
    network: NetworkPolicy | None = field(default=None, metadata=_ENCODED)
    """What the guest may reach: a NetworkPolicy, or a list of hosts; unset: nothing."""
    guard: str | None = field(default=None, metadata=_CALLER)
    """A check of the code before it runs: `ast` or `restrictedpython`; a seat belt, not a wall."""
    durability: str = field(default="none", metadata=_BACKEND)
    """When the `ray` backend saves the session to the fleet's store: `none`, `periodic` (every few
    seconds), or `cell` (before a call is answered)."""
    auto_recover: bool = field(default=False, metadata=_BACKEND)
    """Whether calls of the `ray` backend wait while a session whose node was lost is restored."""
    explored_length: int | None = field(default=None, metadata=_SENT)
    """Set by REPLEnvironment: the guest gets peek, grep and FINAL for so many characters."""
    timeout_seconds: InitVar[float | None] = None
    """`timeout_ms` in seconds, and used instead of it; ConfigError for both together."""
    copied_timeout_ms: InitVar[float | None] = None
    """Set by dataclasses.replace alone: the time limit of the configuration that it copies."""

    def __post_init__(self, timeout_seconds: float | None, copied_timeout_ms: float | None) -> None:
        limit = _time_limit(self.timeout_ms, timeout_seconds, copied_timeout_ms)
        object.__setattr__(self, "timeout_ms", limit)
        for name in options_with(POSITIVE, type(self)):  # type: ignore[arg-type]  # a class has a hash
            if (number := getattr(self, name)) is None:
                text = "must be a number, not None: leave it out for the default"
                raise ConfigError(f"{name} {text}")
            check_positive(name, number)
        for name, (default, check) in _CHECKS.items():
            if (given := getattr(self, name)) != default:
                object.__setattr__(self, name, check(given))
        for option in fields(self):
            if option.type == "bool" and not isinstance(given := getattr(self, option.name), bool):
                raise ConfigError(f"{option.name} must be True or False, not {given!r:.60}")
        _check_together(self)
        if self.backend in ("", "auto") and (self.url is not None or self.api_key is not None):
            object.__setattr__(self, "backend", "remote")
        elif not self.backend:
            object.__setattr__(self, "backend", backend_from_environment())

    def with_values(self, **values: Any) -> Self:
        """Return a copy with these values of ours, which are not checked: the rest was before."""
        copied = copy.copy(self)
        for name, value in values.items():
            object.__setattr__(copied, name, value)
        return copied


@functools.cache
def options_with(trait: str, kind: type[Any] | None = None) -> tuple[str, ...]:
    """Return the names of the options that have a trait."""
    return tuple(
        option.name for option in fields(kind or SandboxConfig) if trait in option.metadata
    )


# Set after the class: dataclass would take a property for the field's default. dataclasses.replace
# passes both on, as values of fields that were not changed.
setattr(SandboxConfig, "timeout_seconds", property(lambda self: self.timeout_ms / 1000))  # noqa: B010
setattr(SandboxConfig, "copied_timeout_ms", property(lambda self: self.timeout_ms))  # noqa: B010


def _time_limit(milliseconds: float, seconds: float | None, copied: float | None) -> float:
    """Return the time limit in milliseconds; ConfigError if it is given twice.

    `copied` is the limit of the configuration that dataclasses.replace copies: then only a value
    that differs from it was given.
    """
    given = not isinstance(milliseconds, _Default)
    if copied is not None:
        given = milliseconds != copied
        seconds = None if seconds == copied / 1000 else seconds
    if seconds is None:
        return int(milliseconds) if isinstance(milliseconds, _Default) else milliseconds
    if given:
        raise ConfigError("timeout_ms and timeout_seconds are the same limit: give one of them")
    check_positive("timeout_seconds", seconds)
    return seconds * 1000


def _check_together(config: SandboxConfig) -> None:
    _check_of_image(config)
    if config.auto_recover and config.durability == "none":
        raise ConfigError("auto_recover needs a state to go on from: set durability='cell'")


def _check_of_image(config: SandboxConfig) -> None:
    """Raise ConfigError for options about an image that are malformed, or without one."""
    for name in ("user", "workdir"):
        given: Any = getattr(config, name)
        if given is not None and (not isinstance(given, str) or not given or "\0" in given):
            raise ConfigError(f"{name} must be a text, not {given!r:.60}")
    if config.workdir not in (None, "image") and not str(config.workdir).startswith("/"):
        raise ConfigError(f"workdir must be an absolute path or 'image', not {config.workdir!r}")
    for name in ("writable_root", "user", "workdir", "entrypoint"):
        if config.image is None and getattr(config, name):
            raise ConfigError(f"{name} is about an image: name one with image=")


def check_image(image: Any) -> str:
    """Return a reference with an absolute path; ConfigError if it cannot be one."""
    if not isinstance(image, str) or not image or "\0" in image or len(image) > MAX_REFERENCE:
        raise ConfigError(f"image must be a reference such as 'python:3.12', not {image!r:.60}")
    kind, _, path = image.partition(":")
    return f"{kind}:{expand_home(path).absolute()}" if kind in LOCAL_IMAGES else image


def _tools(tools: Any) -> Mapping[str, Handler]:
    if not isinstance(tools, Mapping):
        raise ConfigError(f"tools must map names to functions, not {tools!r:.60}")
    for name, function in tools.items():
        if not isinstance(name, str) or not _NAME.match(name):
            raise ConfigError(f"a tool's name must be a Python name, not {name!r:.60}")
        if name in BUILT_IN:
            raise ConfigError(
                f"a tool cannot be called {name!r}: Python has that name, and so has guest code. "
                f"Give it another: tools={{'my_{name}': ...}}"
            )
        if not callable(function):
            raise ConfigError(f"the tool {name} must be a function, not {function!r:.60}")
    return cast("Mapping[str, Handler]", tools)


def _guard(given: Any) -> str:
    if given not in GUARDS:
        raise ConfigError(f"no guard {given!r}: there are {', '.join(GUARDS)}")
    return str(given)


def _durability(given: Any) -> str:
    if given not in DURABILITIES:
        known = ", ".join(DURABILITIES)
        raise ConfigError(f"durability must be one of {known}, not {given!r:.60}")
    return str(given)


def _callback(name: str, given: Any) -> Callable[..., None]:
    if not callable(given):
        raise ConfigError(f"{name} must be a function, not {given!r:.60}")
    return cast("Callable[..., None]", given)


def _index_url(given: str | Sequence[str]) -> str | tuple[str, ...]:
    if isinstance(given, str) and given:
        return given
    urls = tuple(given)
    if not urls or not all(isinstance(url, str) and url for url in urls):
        raise ConfigError(f"index_url must be a URL or several, not {given!r}")
    return urls


def _arguments(argv: Sequence[str]) -> tuple[str, ...]:
    if isinstance(argv, str) or not all(isinstance(word, str) for word in argv):
        raise ConfigError(f"argv must be a list of str, not {argv!r}")
    return tuple(argv)


def _folder(path: str | Path) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"workspace must be a path, not {type(path).__name__}")
    folder = expand_home(path).absolute()
    try:
        is_folder = stat.S_ISDIR(os.stat(folder).st_mode)
    except FileNotFoundError:
        message = f"the working folder {folder} does not exist: create it first"
        raise ConfigError(message) from None
    except OSError as exc:
        raise ConfigError(f"the working folder {folder} cannot be used: {exc.strerror}") from None
    if not is_folder:
        raise ConfigError(f"the working folder {folder} is not a folder")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise ConfigError(f"the working folder {folder} cannot be read: Permission denied")
    return folder


def expand_home(path: str | Path) -> Path:
    """Return the path with `~` replaced; ConfigError if this user has no home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(f"{path} is below the home folder, and HOME is not set: set it") from None


_CHECKS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "policy": (..., ExecutionPolicy.of),
    "network": (None, NetworkPolicy.of),
    "guard": (None, _guard),
    "min_isolation": (None, Isolation.parse),
    "wasm_binary_path": (None, lambda path: expand_home(path).absolute()),
    "index_url": (None, _index_url),
    "argv": (None, _arguments),
    "packages": ((), requirements.normalise),
    "workspace": (None, _folder),
    "image": (None, check_image),
    "durability": (DURABILITIES[0], _durability),
    "tools": ({}, _tools),
    "on_output": (None, functools.partial(_callback, "on_output")),
    "on_stdout": (None, functools.partial(_callback, "on_stdout")),
    "on_stderr": (None, functools.partial(_callback, "on_stderr")),
}
"""Defaults of options, and what checks any other value and returns it as it is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplSettings:
    """Whether code runs in warm interpreters, and how long to wait for a REPL server."""

    enabled: bool = True
    warmup_seconds: float = 15
    health_check_seconds: float = 5

    def __post_init__(self) -> None:
        check_positive("warmup_seconds", self.warmup_seconds)
        check_positive("health_check_seconds", self.health_check_seconds)

    @classmethod
    def from_environment(cls) -> ReplSettings:
        """Read the settings from the variables of REPL_VARIABLES; the defaults are the fields'."""
        read = {
            name: switch(known) if name == "enabled" else _seconds(known)
            for name, known in REPL_VARIABLES.items()
            if variable(known)
        }
        return cls(**read)  # type: ignore[arg-type]


REPL_VARIABLES = {
    "enabled": "REPL_ENABLED",
    "warmup_seconds": "REPL_WARMUP_TIMEOUT_SECONDS",
    "health_check_seconds": "REPL_HEALTH_CHECK_TIMEOUT_SECONDS",
}
"""The environment variable of each field of ReplSettings."""


def variable(name: str) -> str:
    """Return an environment variable without spaces around it; an empty text if it is not set."""
    return os.environ.get(name, "").strip()


def switch(name: str) -> bool:
    """Return whether an environment variable says true or false; True if it is empty."""
    text = variable(name).lower()
    if text not in _SWITCHES:
        raise ConfigError(f"{name} must be true or false, not {text!r}")
    return _SWITCHES[text]


def _seconds(name: str) -> float:
    text = variable(name)
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{name} must be a number of seconds, not {text!r}") from None
    check_positive(name, value)
    return value


def backend_is_chosen() -> bool:
    """Return whether ATOLL_BACKEND is set."""
    return bool(variable("ATOLL_BACKEND"))


def backend_from_environment() -> str:
    """Return the default backend: that of ATOLL_BACKEND, or `auto` without it."""
    name = variable("ATOLL_BACKEND") or "auto"
    if name not in BACKENDS:
        known = ", ".join(map(repr, BACKENDS))
        raise ConfigError(f"ATOLL_BACKEND: unknown backend {name!r}: use one of {known}")
    return name


def state_key_from_environment() -> bytes | None:
    """Return the key of ATOLL_STATE_KEY for signing saved states, or None."""
    text = os.environ.get("ATOLL_STATE_KEY")
    if text and len(text) < SHORTEST_KEY:
        raise ConfigError(f"ATOLL_STATE_KEY must have at least {SHORTEST_KEY} characters")
    return text.encode(errors="surrogateescape") if text else None


def service_from_environment() -> tuple[str | None, str | None]:
    """Return the address and the key of the `remote` backend: ATOLL_URL and ATOLL_API_KEY."""
    return variable("ATOLL_URL") or None, variable("ATOLL_API_KEY") or None


def on_windows() -> bool:
    """Return whether this is Windows itself, and not Linux inside it (WSL)."""
    return sys.platform == "win32"


def daemon_socket() -> Path:
    """Return the socket of the daemon: ATOLL_DAEMON_SOCKET, or one below the home folder.

    On Windows it is the name of a pipe, where no daemon can answer: its jails need Linux.
    """
    given = os.environ.get("ATOLL_DAEMON_SOCKET")
    if not given and on_windows():
        return Path(WINDOWS_PIPE)
    if not given and os.environ.get("HOME") == "":
        raise ConfigError("HOME is empty: set it, or choose a place for the daemon with --socket")
    return Path(given).absolute() if given else expand_home("~/.rlm/daemon.sock")


def fleet_address(given: str | None = None) -> str:
    """Return HOST:PORT of a fleet's head: the one given, ATOLL_FLEET, or this machine's."""
    return given or variable("ATOLL_FLEET") or f"127.0.0.1:{FLEET_PORT}"


def fleet_socket(address: str) -> Path:
    """Return the socket of this user's driver for a fleet, in ATOLL_FLEET_FOLDER or the home."""
    folder = os.environ.get("ATOLL_FLEET_FOLDER")
    name = re.sub(r"[^A-Za-z0-9.]+", "-", address)[:40]
    return (Path(folder).absolute() if folder else expand_home("~/.rlm")) / f"fleet-{name}.sock"


def environments_limit() -> int:
    """Return the bytes that environments of packages may take, from ATOLL_ENVIRONMENTS_MB."""
    return _bytes("ATOLL_ENVIRONMENTS_MB", DEFAULT_ENVIRONMENTS_MB)


def images_limit() -> int:
    """Return the bytes that container images may take, from ATOLL_IMAGES_MB."""
    return _bytes("ATOLL_IMAGES_MB", DEFAULT_IMAGES_MB)


def cache_folder() -> Path:
    """Return the folder of built artefacts: ATOLL_CACHE, or one in the user's cache."""
    if given := os.environ.get("ATOLL_CACHE"):
        return Path(given).resolve()
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return expand_home(home).resolve() / "atoll"
