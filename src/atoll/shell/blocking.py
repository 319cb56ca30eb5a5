"""Workspaces behind a shell, for blocking code."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, cast

from atoll.concurrency.portal import Portal
from atoll.errors import ConfigError
from atoll.files.base import SyncFiles, blocking, run_at_once
from atoll.shell import local, sandbox

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from atoll.files.base import Files
    from atoll.policy import Isolation
    from atoll.types import ExecuteResponse


class ShellSandbox(SyncFiles, ABC):
    """Any sandbox that can run a shell command. A subclass says how, and its `id`.

        class Container(atoll.ShellSandbox):
            id = "container-1"

            def execute(self, command):
                done = subprocess.run(["docker", "exec", "box", "sh", "-c", command], ...)
                return atoll.ExecuteResponse(output=done.stdout, exit_code=done.returncode)

        Container().read("/etc/os-release")

    Everything else is as in `atoll.aio.ShellSandbox`.
    """

    _run = staticmethod(run_at_once)

    def __init__(self) -> None:
        """Take no arguments; a subclass need not call this."""

    @property
    @abstractmethod
    def id(self) -> str:
        """A name that no other sandbox has."""

    @abstractmethod
    def execute(self, command: str) -> ExecuteResponse:
        """Run a shell command, up to 128 KiB long; stdout and stderr may be merged."""

    @cached_property
    def _inner(self) -> Files:  # type: ignore[override]
        return _Waiting(self)


class _Waiting(sandbox.ShellSandbox):
    """Adapts a blocking sandbox to the async interface; its commands never suspend."""

    def __init__(self, box: ShellSandbox) -> None:
        self._box = box

    @property
    def id(self) -> str:
        return self._box.id

    async def execute(self, command: str) -> ExecuteResponse:
        response: Any = self._box.execute(command)
        if inspect.iscoroutine(response):
            response.close()
            raise ConfigError("execute() is async: derive from atoll.aio.ShellSandbox instead")
        return cast("ExecuteResponse", response)


class LocalSandbox(SyncFiles):
    """Your own machine, for development: commands run as you. IT ISOLATES NOTHING.

        with atoll.LocalSandbox(cwd="project") as box:
            print(box.execute("make test").output)

    Everything else is as in `atoll.aio.LocalSandbox`.
    """

    _inner: local.LocalSandbox

    def __init__(
        self,
        cwd: str | PathLike[str] | None = None,
        timeout: float = local.TIMEOUT_MS,
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(local.LocalSandbox(cwd, timeout, env), Portal.shared().run)

    @property
    def id(self) -> str:
        """A name that no other sandbox has."""
        return self._inner.id

    @property
    def isolation(self) -> Isolation:
        """Always Isolation.NONE."""
        return self._inner.isolation

    execute = blocking(local.LocalSandbox.execute)
    close = blocking(local.LocalSandbox.close)

    def __repr__(self) -> str:
        return repr(self._inner)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
