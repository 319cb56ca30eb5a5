"""`atoll repl`: runs cells that are typed at a prompt, in one sandbox that keeps its state."""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll import __version__, aio
from atoll.backends import registry
from atoll.cli import settings
from atoll.cli.argument_types import seconds
from atoll.cli.commands import cells
from atoll.cli.commands.cells import FigureFolder
from atoll.cli.terminal import streams
from atoll.cli.terminal.prompt import Completer, Prompt
from atoll.cli.terminal.standard_streams import require_stdin
from atoll.errors import ConfigError, UnsupportedError
from atoll.sandbox.context import Context
from atoll.types import Outcome

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from atoll.config import SandboxConfig
    from atoll.sandbox.base import BaseSandbox
    from atoll.types import SandboxResult

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


def command(args: Namespace) -> int:
    """Read cells and run them until the user leaves; return the exit code."""
    if args.context == settings.STDIN:
        raise ConfigError("cells come from stdin, so the context cannot: give it as a file")
    require_stdin()
    streams.accept_any_text()
    output, figures = streams.GuestOutput(), FigureFolder(args.figures)
    # Cells that come from a pipe leave nothing there for their input().
    typed = streams.PipedInput()

    async def keyboard(size: int) -> bytes:
        line = await typed.read(size)
        output.line_was_typed()
        return line

    config = settings.config_from(args, output, on_stdin=keyboard if sys.stdin.isatty() else None)
    # The loop runs while a cell does; at the prompt nothing is to be done.
    with asyncio.Runner() as runner:
        box = runner.run(_open(config))
        cells.warn_of_memory(box)
        try:
            return Repl(runner, box, config, output, figures).loop()
        finally:
            runner.run(box.destroy())


class Repl:
    """The loop of prompt and cell."""

    def __init__(
        self,
        runner: asyncio.Runner,
        box: BaseSandbox,
        config: SandboxConfig,
        output: streams.GuestOutput,
        figures: FigureFolder,
    ) -> None:
        self._runner, self._box, self._output = runner, box, output
        self._commands = ReplCommands(runner, box, config)
        self._config, self._figures = config, figures

    def loop(self) -> int:
        """Run until Ctrl-D, %quit, or a cell that exits; return the exit code."""
        completer = Completer(self._runner, self._box, self._output, self._commands.names)
        with Prompt(completer) as prompt:
            if prompt.interactive:
                print(self._runner.run(banner(self._box, self._config)))
            while (cell := prompt.read()) is not None:
                code = self._try(cell)
                if code is not None:
                    return code
        return 0

    def _try(self, cell: str) -> int | None:
        try:
            return self._do(cell)
        except KeyboardInterrupt:  # it came outside a cell, as during %reset
            print()
            return None

    def _do(self, cell: str) -> int | None:
        """Run a cell or a command; return an exit code to leave with, or None."""
        if not cell.strip():
            return None
        if cell.startswith("!"):
            return self._shell(cell[1:].strip())
        if not cell.startswith("%"):
            return self._run(cell)
        done = self._commands.do(cell)
        if done.text:
            print(done.text)
        if done.code:
            return self._run(done.code)
        return 0 if done.leave else None

    def _run(self, code: str) -> int | None:
        result = self._runner.run(self._cell(code))
        if self._output.failure is not None:
            return 1
        self._show(result)
        left = result.kind is Outcome.EXITED and not result.state_lost
        return cells.exit_code(result) if left else None

    def _shell(self, command: str) -> int | None:
        """Run a shell command in the sandbox; return 1 if the output cannot be written."""
        timeout = self._commands.timeout_ms
        try:
            done = self._runner.run(cells.run_command(self._box, command, self._output, timeout))
        except (ConfigError, UnsupportedError) as exc:
            cells.complain(str(exc))
            return None
        if done.error or done.exit_code:
            cells.complain(done.error or f"exit code {done.exit_code}")
        return None if self._output.failure is None else 1

    async def _cell(self, code: str) -> SandboxResult:
        timeout = self._commands.timeout_ms
        return await cells.run_cell(
            self._box, code, self._output, timeout_ms=timeout, at_prompt=True
        )

    def _show(self, result: SandboxResult) -> None:
        if result.value_repr is not None:
            text = result.value_repr
            print(streams.harmless(text) if sys.stdout.isatty() else text)
        self._figures.save(result.displays)
        if error := cells.explain(result):
            cells.complain(error)
        if result.state_lost:
            cells.complain("the variables are lost; the next cell starts in a new sandbox")


async def _open(config: SandboxConfig) -> BaseSandbox:
    return await aio.create_sandbox(config)


async def banner(box: BaseSandbox, config: SandboxConfig) -> str:
    """Return two lines that say where cells run."""
    backend = await registry.load(box.backend).availability(config)
    python = backend.details.get("python", "unknown")
    level = str(box.isolation)
    return (
        f"atoll {__version__}: backend {box.backend}, {level}, {_context_size(config.context)}; "
        "type %help for help\n"
        f"Python {python}"
    )


def _context_size(context: Context | str | None) -> str:
    if context is None:
        return "no context"
    length = context.length if isinstance(context, Context) else len(context)
    return f"context of {length:,} characters"


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
        """Run a cell that starts with %; an unknown command is code for the guest."""
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
