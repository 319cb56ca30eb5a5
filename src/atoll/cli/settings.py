"""Arguments as the sandbox's configuration, and the files they name; run and repl use it."""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from atoll.cli.streams import STREAM_LIMIT
from atoll.config import REPLConfig, backend_from_environment
from atoll.context import Context
from atoll.errors import ConfigError
from atoll.policy import ExecutionPolicy, Isolation

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from atoll.cli.streams import GuestOutput

STDIN = "-"
T = TypeVar("T")


def config_from(args: Namespace, output: GuestOutput | None) -> REPLConfig:
    """The configuration that the options of run and repl ask for, streaming to `output`."""
    fields: dict[str, Any] = {}
    if output is not None:
        fields = {"on_stdout": output.stdout, "on_stderr": output.stderr}
        fields["max_output_length"] = STREAM_LIMIT
    if args.timeout is not None:
        fields["timeout_ms"] = args.timeout * 1000
    if args.files is not None:
        fields["workspace"] = Path(args.files)
    if args.context is not None:
        fields["context"] = read_context(args.context)
    return backend_config(args, policy=policy_from(args), guard=args.guard, **fields)


def backend_config(args: Namespace, **fields: Any) -> REPLConfig:
    """The configuration that the options about the backend ask for, with `fields` on top."""
    level = args.min_isolation
    return REPLConfig(
        backend=args.backend or backend_from_environment(),
        python=args.python,
        min_isolation=None if level is None else Isolation.parse(level),
        **fields,
    )


def policy_from(args: Namespace) -> ExecutionPolicy:
    """The limits: the defaults, unless an option says otherwise."""
    given = {"memory_bytes": args.memory, "disk_bytes": args.disk}
    return ExecutionPolicy(**{name: value for name, value in given.items() if value is not ...})


def read_code(args: Namespace) -> str:
    """The program to run: from the option, from stdin or from a file."""
    if args.code is not None:
        return str(args.code)
    if args.file == STDIN and args.context == STDIN:
        raise ConfigError("code and context cannot both come from stdin: give one as a file")
    if args.file == STDIN:
        return _readable("stdin", _read_stdin).removeprefix("\ufeff")
    path = Path(args.file)
    return _readable(args.file, lambda: path.read_text("utf-8-sig"))


def read_context(name: str) -> Context | str:
    """A text file as a context that is shared with the sandbox, not copied; or all of stdin."""
    path = Path(name)
    if name == STDIN:
        return _readable("stdin", _read_stdin)
    return _readable(name, lambda: _load_context(path))


def _load_context(path: Path) -> Context | str:
    if stat.S_ISFIFO(path.stat().st_mode):  # as in --context <(command)
        return path.read_text("utf-8")
    return Context.from_file(path)


def _read_stdin() -> str:
    return sys.stdin.buffer.read().decode("utf-8")


def _readable(name: str, read: Callable[[], T]) -> T:
    """What `read` gives; one line that says what is wrong with `name` otherwise."""
    try:
        return read()
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{name} is not UTF-8 text (byte {exc.start:,})") from None
    except OSError as exc:
        raise ConfigError(f"cannot read {name}: {exc.strerror or exc}") from None
