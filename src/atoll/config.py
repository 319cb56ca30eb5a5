"""How a sandbox is to be: the one configuration object, and the one reader of the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.errors import ConfigError
from atoll.log import SandboxLogger
from atoll.policy import ExecutionPolicy, Isolation, check_positive

if TYPE_CHECKING:
    from collections.abc import Mapping

Handler = Callable[..., Any] | Callable[..., Awaitable[Any]]
LineCallback = Callable[[str], None]

DEFAULT_TIMEOUT_MS = 600_000
_NAME = re.compile(r"[A-Za-z_]\w*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class REPLConfig:
    """All that `create_sandbox` takes."""

    backend: str = "auto"
    context: Any = None
    """Text or a JSON-like value, or a Context made of one; the guest's variable `context`."""
    state: bytes | None = None
    """What save() returned: the session starts with its variables and files."""
    min_isolation: Isolation | None = None
    """The weakest level to accept; unset: JAILED for `auto`, the ring's own level otherwise."""
    timeout_ms: float = DEFAULT_TIMEOUT_MS
    max_output_length: int = 1_000_000
    """Characters of stdout, and of stderr, in a result."""
    policy: ExecutionPolicy = field(default_factory=ExecutionPolicy)
    python: str | None = None
    """The guest's interpreter, such as a venv's; unset: the one that runs the host."""
    workspace: Path | None = None
    """A host folder to be the guest's /app; unset: a private one, thrown away at the end."""
    on_stdout: LineCallback | None = None
    on_stderr: LineCallback | None = None
    on_llm_query: Handler | None = None
    on_rlm_query: Handler | None = None
    tools: Mapping[str, Handler] = field(default_factory=dict)
    """Functions of the host that guest code may call by these names."""
    max_concurrency: int = 32
    """Calls of one batch that run on the host at one time."""
    logger: SandboxLogger = field(default_factory=SandboxLogger)

    def __post_init__(self) -> None:
        check_positive("timeout_ms", self.timeout_ms)
        check_positive("max_output_length", self.max_output_length)
        check_positive("max_concurrency", self.max_concurrency)
        if self.min_isolation is not None:
            object.__setattr__(self, "min_isolation", Isolation.parse(self.min_isolation))
        if self.workspace is not None:
            object.__setattr__(self, "workspace", _folder(self.workspace))
        for name in self.tools:
            if not _NAME.match(name):
                raise ConfigError(f"a tool's name must be a Python name, not {name!r}")


def _folder(path: str | Path) -> Path:
    folder = Path(path).expanduser().absolute()
    if not folder.exists():
        raise ConfigError(f"the working folder {folder} does not exist: create it first")
    if not folder.is_dir():
        raise ConfigError(f"the working folder {folder} is not a folder")
    return folder


def backend_from_environment() -> str:
    """The backend that ATOLL_BACKEND names, for the command line; `auto` without it."""
    return os.environ.get("ATOLL_BACKEND") or "auto"


def daemon_socket() -> Path:
    """Where the daemon listens: ATOLL_DAEMON_SOCKET, or below the home folder without it."""
    given = os.environ.get("ATOLL_DAEMON_SOCKET")
    return Path(given).absolute() if given else Path("~/.rlm/daemon.sock").expanduser()
