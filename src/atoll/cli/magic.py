"""The %-commands of `atoll repl`; the loop asks here what to do."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.cli.arguments import seconds

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from atoll.config import REPLConfig
    from atoll.sandbox import BaseSandbox

HELP = """\
%help             this
%reset            a fresh sandbox with the same context
%timeout SECONDS  the time that a cell may take; without a number: tell it
%vars             the names that cells have made, and their types
!COMMAND          a shell command in the same jail, where the backend has a shell
%quit             leave, as Ctrl-D and exit() do"""

LIST_NAMES = (
    "print(*sorted(f'{k:<16} {type(v).__name__}' for k, v in globals().items() "
    "if k[:1] != '_') or ['no names'], sep='\\n')"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the loop is to do: show `text`, run `code`, or leave."""

    text: str = ""
    code: str = ""
    leave: bool = False


class Magic:
    """The commands, and the time limit that one of them sets."""

    def __init__(self, runner: asyncio.Runner, box: BaseSandbox, config: REPLConfig) -> None:
        self._runner, self._box, self._config = runner, box, config
        self.timeout_ms = config.timeout_ms
        self._commands: dict[str, Callable[[str], Answer]] = {
            "%help": lambda _: Answer(text=HELP),
            "%reset": self._reset,
            "%timeout": self._timeout,
            "%vars": lambda _: Answer(code=LIST_NAMES),
            "%quit": lambda _: Answer(leave=True),
        }

    def do(self, line: str) -> Answer:
        """Do what a line that starts with % says."""
        name, _, argument = line.strip().partition(" ")
        if name not in self._commands:
            return Answer(text=f"no command {name}: there are {', '.join(self._commands)}")
        return self._commands[name](argument.strip())

    def _reset(self, _argument: str) -> Answer:
        self._runner.run(self._box.initialize(self._config.context))
        return Answer(text="a fresh sandbox, with the same context")

    def _timeout(self, argument: str) -> Answer:
        if argument:
            try:
                self.timeout_ms = seconds(argument) * 1000
            except argparse.ArgumentTypeError as exc:
                return Answer(text=str(exc))
        return Answer(text=f"a cell may take {self.timeout_ms / 1000:g} s")
