"""The %-commands of `atoll repl` itself; other magics, such as `%time`, are the guest's."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.cli.argument_types import seconds

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from atoll.config import SandboxConfig
    from atoll.sandbox.base import BaseSandbox

HELP = """\
%help             show this list
%reset            start a new sandbox with the same context
%timeout SECONDS  set the time that a cell may take; without a number: show it
%vars             list variables and their types
%lsmagic          list the magics that run in the sandbox, such as %time and %pip;
                  a cell that begins with %%, such as %%bash, ends at an empty line
!COMMAND          run a shell command in the sandbox, if the backend has a shell
%quit             leave, like Ctrl-D and exit()
Tab completes names and attributes. Ctrl-C stops a running cell."""

LIST_NAMES = (
    "print(*sorted(f'{k:<16} {type(v).__name__}' for k, v in globals().items() "
    "if k[:1] != '_') or ['no names'], sep='\\n')"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What the loop has to do: print `text`, run `code`, or leave."""

    text: str = ""
    code: str = ""
    leave: bool = False


class ReplCommands:
    """Runs %-commands, and holds the time limit that one of them sets."""

    def __init__(self, runner: asyncio.Runner, box: BaseSandbox, config: SandboxConfig) -> None:
        self._runner, self._box, self._config = runner, box, config
        self.timeout_ms = config.timeout_ms
        self._commands: dict[str, Callable[[str], CommandResult]] = {
            "%help": lambda _: CommandResult(text=HELP),
            "%reset": self._reset,
            "%timeout": self._timeout,
            "%vars": lambda _: CommandResult(code=LIST_NAMES),
            "%quit": lambda _: CommandResult(leave=True),
        }

    @property
    def names(self) -> list[str]:
        """The commands, such as `%help`."""
        return list(self._commands)

    def do(self, line: str) -> CommandResult:
        """Run a cell that starts with %; one that is no command here is code for the guest."""
        name, _, argument = line.strip().partition(" ")
        if name not in self._commands:
            return CommandResult(code=line)
        return self._commands[name](argument.strip())

    def _reset(self, _argument: str) -> CommandResult:
        self._runner.run(self._box.initialize(self._config.context))
        return CommandResult(text="new sandbox, same context")

    def _timeout(self, argument: str) -> CommandResult:
        if argument:
            try:
                self.timeout_ms = seconds(argument) * 1000
            except argparse.ArgumentTypeError as exc:
                return CommandResult(text=f"the time {exc}")
        return CommandResult(text=f"a cell may take {self.timeout_ms / 1000:g} s")
