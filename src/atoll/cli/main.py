"""The entry point of `atoll`: parses the arguments, runs one command, prints errors in one line."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Everything else is imported in main(), where a Ctrl-C during the import ends without a traceback.
# ruff: noqa: PLC0415

FAILURE = 1
NOTHING_RAN = 2
INTERRUPTED = 130
BROKEN_PIPE = 141
NO_THREAD = "can't start new thread"
ELSEWHERE = ("completion", "doctor", "kernel", "mcp", "repl", "run")
"""Commands that other systems than Linux have, for sandboxes of a service."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` names and return its exit code: see the end of `atoll --help`."""
    try:
        return _guarded(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        if sys.stderr is not None and sys.stderr.isatty():
            print(file=sys.stderr)  # after the ^C that the terminal shows
        return INTERRUPTED


def _guarded(given: list[str]) -> int:
    """Run the command; print its errors in one line."""
    from atoll.cli.terminal import standard_streams
    from atoll.errors import AtollError

    standard_streams.reopen_closed()
    try:
        code = _run(given)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has gone, as in `atoll doctor | head -1`
        standard_streams.discard(sys.stdout)
        return BROKEN_PIPE
    except AtollError as exc:
        return _fail(str(exc), NOTHING_RAN)
    except OSError as exc:  # a full disk, a closed stdout
        standard_streams.discard(sys.stdout)
        what = exc.filename or "cannot write the output"
        return _fail(f"{what}: {exc.strerror or exc}", FAILURE)
    except RuntimeError as exc:
        if str(exc) != NO_THREAD:
            raise
        return _fail(_no_thread(), NOTHING_RAN)
    return code


def _run(given: list[str]) -> int:
    if given == ["--version"]:  # installers and scripts ask often: without the parser
        from atoll import __version__

        print(f"atoll {__version__}")
        return 0
    from importlib import import_module

    from atoll.cli import arguments

    if not given:
        print(short_help(), file=sys.stderr)
        return NOTHING_RAN
    try:
        args = arguments.parse(given)
    except SystemExit as exc:  # argparse has printed help, or an error
        return int(exc.code or 0)
    if sys.platform != "linux" and (args.command not in ELSEWHERE or getattr(args, "fix", False)):
        raise _needs_linux(args.command)
    module = import_module(f"atoll.cli.commands.{args.command.replace('-', '_')}")
    command: Callable[[object], int] = module.command
    return command(args)


def short_help() -> str:
    """Return what `atoll` without arguments prints: the commands, and examples."""
    from atoll.cli import arguments

    top = arguments.parser("--help")
    top.epilog = (
        f"{arguments.Section('atoll').epilog}\nType `atoll COMMAND --help` for one command."
    )
    return top.format_help().rstrip()


def _needs_linux(command: str) -> Exception:
    from atoll.errors import ConfigError

    return ConfigError(
        f"`atoll {command}` needs Linux. Here, use a service that runs there: `atoll run --url URL`"
    )


def _no_thread() -> str:
    from atoll.jail.measure import host_facts

    return f"this process may not start a thread. {host_facts.read().hint()}"


def _fail(text: str, code: int) -> int:
    try:
        print(f"atoll: {text}", file=sys.stderr, flush=True)
    except OSError:
        from atoll.cli.terminal import standard_streams

        standard_streams.discard(sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
