"""`atoll repl`: runs cells that are typed at a prompt, in one sandbox that keeps its state."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from atoll import __version__, aio
from atoll.backends import registry
from atoll.cli import settings
from atoll.cli.commands import cells
from atoll.cli.commands.repl_commands import ReplCommands
from atoll.cli.terminal import streams
from atoll.cli.terminal.figures import FigureFolder
from atoll.cli.terminal.prompt import Prompt
from atoll.cli.terminal.standard_streams import require_stdin
from atoll.cli.terminal.tab_completion import Completer
from atoll.errors import ConfigError, UnsupportedError
from atoll.sandbox.context import Context
from atoll.types import Outcome

if TYPE_CHECKING:
    from argparse import Namespace

    from atoll.config import SandboxConfig
    from atoll.sandbox.base import BaseSandbox
    from atoll.types import SandboxResult


def command(args: Namespace) -> int:
    """Read cells and run them until the user leaves; return the exit code."""
    if args.context == settings.STDIN:
        raise ConfigError("cells come from stdin, so the context cannot: give it as a file")
    require_stdin()
    streams.accept_any_text()
    output, figures = streams.GuestOutput(), FigureFolder(args.figures)
    config = settings.config_from(args, output)
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
        with Prompt(completer.complete) as prompt:
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
