"""The machine itself, for development: commands run as the caller, files are those of a folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
import weakref
from typing import TYPE_CHECKING, Any, Self, TypedDict

from atoll.errors import ConfigError, SandboxClosedError
from atoll.files.direct import FolderFiles
from atoll.guest.shared.workspace import Workspace
from atoll.policy import Isolation, check_positive
from atoll.shell.fetched_files import FetchedFiles
from atoll.shell.running import CommandNotStartedError, Running
from atoll.types import ExecuteResponse

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from atoll.files.direct import Folders

TIMEOUT_MS = 30_000
MAX_COMMAND = (128 << 10) - 1
STORING = frozenset({"write", "upload", "mkdir"})
INHERITED = ("PATH", "HOME", "LANG", "TERM", "TZ", "USER", "LOGNAME", "SHELL", "TMPDIR")


class LocalSandboxOptions(TypedDict, total=False):
    """The arguments of LocalSandbox, for `LocalSandbox(**options)`."""

    cwd: str | PathLike[str] | None
    timeout: float
    env: Mapping[str, str] | None


class LocalSandbox(FolderFiles):
    """Your own machine, for development: commands run as you, on your files. IT ISOLATES NOTHING.

        async with atoll.aio.LocalSandbox(cwd="project") as box:
            print((await box.execute("make test")).output)

    `execute` runs a command with bash in `cwd`, for up to `timeout` milliseconds; of the
    environment it gets only what a shell needs, and `env`. The file operations stay in `cwd`:
    `/x` means `x` there, and no link leads out. `close` ends what was left in the background.

    A `cwd` that does not exist is looked for again at each use: until it exists, a command returns
    an error with exit code 1, and no file is found.
    """

    def __init__(
        self,
        cwd: str | PathLike[str] | None = None,
        timeout: float = TIMEOUT_MS,
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(self._descriptors)
        _check_timeout(timeout)
        self._timeout, self._env = timeout, _environment(env or {})
        self._cwd = _absolute(cwd)
        self._names: list[str] = []
        """The absolute paths of the folder, once it is open: as given, and without links."""
        self._folder: list[int] = []
        """Its descriptor, once it is open."""
        self._let_go = weakref.finalize(self, _close_all, self._folder)
        with contextlib.suppress(OSError):
            self._open()
        self._id = f"local-{time.time_ns() // 1_000_000}-{secrets.token_hex(6)}"
        self._running: set[Running] = set()

    @property
    def id(self) -> str:
        """A unique name of this sandbox."""
        return self._id

    @property
    def isolation(self) -> Isolation:
        """Always Isolation.NONE."""
        return Isolation.NONE

    async def execute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:  # noqa: ASYNC109 - its end is a result
        """Run a command with bash in the folder; `timeout` in milliseconds.

        A command that takes longer is killed, with all processes that it started: exit code 124.
        One that cannot be started returns the reason as output, with exit code 1.
        """
        _check_command(command)
        if timeout is not None:
            _check_timeout(timeout)
        self._check_open()
        self._bury()
        try:
            _check_can_start(command)
            return await self._run_command(command, timeout or self._timeout)
        except CommandNotStartedError as exc:
            return ExecuteResponse(output=f"Error: {exc}", exit_code=1, error=str(exc))
        finally:
            self._bury()

    async def _run_command(self, command: str, timeout_ms: float) -> ExecuteResponse:
        running = await Running.start(command, self._cwd, self._env)
        self._running.add(running)
        try:
            return await running.outcome(timeout_ms)
        except BaseException:
            await asyncio.shield(running.end())
            raise

    async def close(self) -> None:
        """Kill what still runs and close the folder. Calling it again does nothing."""
        self._let_go()
        await asyncio.gather(*(running.end() for running in self._running))
        self._bury()

    def __repr__(self) -> str:
        return f"<LocalSandbox {self._id} in {self._cwd!r}: no isolation>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def _ask(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        self._check_open()
        try:
            self._open()
        except OSError as exc:
            return self._ask_nothing(operation, params, exc)
        return await super()._ask(operation, params)

    def _ask_nothing(self, operation: str, params: dict[str, Any], exc: OSError) -> dict[str, Any]:
        """Return the answer to an operation while the folder does not exist."""
        refusal: Exception = exc
        if operation in STORING:
            refusal = ValueError(f"the working folder {self._cwd!r} cannot be used: {exc.strerror}")
        return Workspace(FetchedFiles(fault=exc, refusal=refusal)).run(operation, params)

    def _open(self) -> None:
        """Open the folder, unless it is open; OSError if it cannot be used."""
        if not self._folder:
            self._folder.append(os.open(self._cwd, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
            self._names = list(dict.fromkeys([self._cwd, os.path.realpath(self._cwd)]))

    async def _descriptors(self, changing: bool) -> Folders:  # noqa: FBT001 - as FolderFiles asks
        del changing
        self._check_open()
        self._open()
        return {name: os.dup(self._folder[0]) for name in self._names}

    def _bury(self) -> None:
        """Drop commands that have no process left."""
        self._running -= {one for one in self._running if one.is_over}

    def _check_open(self) -> None:
        if not self._let_go.alive:
            raise SandboxClosedError("the sandbox is closed: make a new LocalSandbox")


def _absolute(cwd: str | PathLike[str] | None) -> str:
    path = os.fspath(cwd) if cwd is not None else os.getcwd()
    if not isinstance(path, str):
        raise ConfigError(f"cwd must be a str or a pathlib path, not {type(cwd).__name__}")
    if "\0" in path:
        raise ConfigError(f"cwd contains a zero byte: {path!r:.200}")
    return os.path.abspath(path)


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    for name, value in extra.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigError(f"env must map str to str, and {name!r} does not")
        if not name or "=" in name or "\0" in name + value:
            raise ConfigError(f"not an environment variable: {name!r}")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in INHERITED or name.startswith("LC_")
    }
    return {**kept, **extra}


def _check_timeout(timeout: float) -> None:
    if timeout is None:
        raise ConfigError("timeout must be a number of milliseconds, not None")
    check_positive("timeout", timeout)


def _check_command(command: str) -> None:
    if not isinstance(command, str):
        raise ConfigError(f"command must be a str, not {type(command).__name__}")


def _check_can_start(command: str) -> None:
    """Raise CommandNotStartedError for a command that the kernel would not take."""
    if "\0" in command:
        raise CommandNotStartedError("the command contains a zero byte")
    size = len(os.fsencode(command))
    if size > MAX_COMMAND:
        text = f"the command has {size:,} bytes, and bash takes {MAX_COMMAND:,}"
        raise CommandNotStartedError(f"{text}: write it to a file, and run that")
