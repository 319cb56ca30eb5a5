"""InterpreterSandbox: what backends have in common whose guest is a CPython of this machine."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from atoll.errors import ConfigError, UnsupportedError
from atoll.launch import interpreter, library
from atoll.packages.sandbox import PackagedSandbox
from atoll.packages.target import for_interpreter
from atoll.policy import Isolation
from atoll.sandbox import command as commands

if TYPE_CHECKING:
    from atoll.files.base import Files
    from atoll.launch.interpreter import Interpreter
    from atoll.sandbox.command import Command, CommandOptions
    from atoll.types import ExecuteResponse


LEAST_OPEN_FILES = 24


class InterpreterSandbox(PackagedSandbox):
    """A session in an interpreter of this machine, with its packages and a shell beside it."""

    _python: Interpreter

    async def shell(
        self,
        command: Command,
        *,
        timeout_ms: float | None = None,
        **options: Unpack[CommandOptions],
    ) -> ExecuteResponse:
        """Run a command with bash, or sh; what it leaves running ends with the sandbox."""
        limit = self._timeout(timeout_ms)
        params = commands.to_params(command, options)
        async with self._in_guest() as guest:
            if self._level < Isolation.JAILED:
                level = str(self._level)
                raise UnsupportedError(self.backend, f"run a shell where it is only {level}")
            self.logger.log_execution_start("shell", self.policy, commands.shown(command))
            response = await guest.session.shell(params, limit)
            if guest.network is not None:
                use = guest.network.take()
                words = use.unsaid(response.output) if response.exit_code else ""
                response = replace(response, network=use, output=response.output + words)
        self.logger.log_shell_complete(response)
        return response

    @functools.cached_property
    def files(self) -> Files:
        """The guest's files; those outside the working folder by commands in the sandbox."""
        return super().files.reach_by(self.shell)

    async def _find_interpreter(self) -> None:
        """Find the interpreter and the packages that the configuration names."""
        if self.policy.max_open_files < LEAST_OPEN_FILES:
            given = self.policy.max_open_files
            problem = f"max_open_files must be at least {LEAST_OPEN_FILES}, not {given}"
            raise ConfigError(f"{problem}: starting Python in backend {self.backend!r} takes 20")
        self._python = await self._interpreter()
        make_target = functools.partial(for_interpreter, self._python)
        if (found := await self._have_packages(self._config, make_target)) is not None:
            self._python = replace(self._python, packages=found.site)

    async def _interpreter(self) -> Interpreter:
        """In a thread only if one has to be asked: a hop there and back is felt in a warm start."""
        if self._config.python is None:
            return interpreter.resolve(None)
        return await asyncio.to_thread(interpreter.resolve, self._config.python)

    @property
    def _version(self) -> tuple[int, ...]:
        return self._python.version

    def _state_params(self) -> dict[str, Any]:
        jailed = self._level >= Isolation.JAILED
        return {
            "max_bytes": self._config.max_state_bytes,
            "cloudpickle": library.folder_in_guest(jailed=jailed),
        }
