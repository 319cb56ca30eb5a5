"""The machine itself, for development: commands run as the caller, files are those of a folder."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
import weakref
from typing import TYPE_CHECKING, Self

from atoll.errors import ConfigError, SandboxClosedError
from atoll.files.direct import FolderFiles
from atoll.policy import Isolation, check_positive
from atoll.shell.running import CommandNotStartedError, Running
from atoll.types import ExecuteResponse

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from atoll.files.direct import Folders

TIMEOUT_MS = 30_000
MAX_COMMAND = (128 << 10) - 1
INHERITED = ("PATH", "HOME", "LANG", "TERM", "TZ", "USER", "LOGNAME", "SHELL", "TMPDIR")


class LocalSandbox(FolderFiles):
    """Your own machine, for development: commands run as you, on your files. IT ISOLATES NOTHING.

        async with atoll.aio.LocalSandbox(cwd="project") as box:
            print((await box.execute("make test")).output)

    `execute` runs a command with bash in `cwd`, for up to `timeout` milliseconds; of the
    environment it gets only what a shell needs, and `env`. The file operations stay in `cwd`:
    `/x` means `x` there, and no link leads out. `close` ends what was left in the background.
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
        self._cwd = os.path.abspath(os.fspath(cwd) if cwd is not None else os.getcwd())
        self._names = dict.fromkeys([self._cwd, os.path.realpath(self._cwd)])
        self._folder = _open(self._cwd)
        self._let_go = weakref.finalize(self, os.close, self._folder)
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

    async def _descriptors(self, changing: bool) -> Folders:  # noqa: FBT001 - as FolderFiles asks
        del changing
        self._check_open()
        return {name: os.dup(self._folder) for name in self._names}

    def _bury(self) -> None:
        """Drop commands that have no process left."""
        self._running -= {one for one in self._running if one.is_over}

    def _check_open(self) -> None:
        if not self._let_go.alive:
            raise SandboxClosedError("the sandbox is closed: make a new LocalSandbox")


def _open(cwd: str) -> int:
    try:
        return os.open(cwd, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        text = f"cwd must be a folder that is there, and {cwd!r} is not: {exc.strerror}"
        raise ConfigError(text) from None


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
    if "\0" in command:
        raise ConfigError("a command contains a zero byte")
    size = len(os.fsencode(command))
    if size > MAX_COMMAND:
        text = f"the command has {size:,} bytes, and bash takes {MAX_COMMAND:,}"
        raise ConfigError(f"{text}: write it to a file, and run that")
