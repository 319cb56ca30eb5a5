"""Turns arguments into the sandbox's configuration and reads the files they name."""

from __future__ import annotations

import dataclasses
import errno
import io
import os
import stat
import sys
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from atoll.cli.argument_types import variables
from atoll.cli.terminal.standard_streams import require_stdin
from atoll.cli.terminal.streams import STREAM_LIMIT
from atoll.config import SandboxConfig, backend_is_chosen, service_from_environment
from atoll.errors import BackendUnavailableError, ConfigError
from atoll.network import NetworkPolicy
from atoll.policy import ExecutionPolicy, Isolation, Mount
from atoll.sandbox.context import Context

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from atoll.cli.terminal.streams import GuestOutput

STDIN = "-"
T = TypeVar("T")


def config_from(args: Namespace, output: GuestOutput | None, **more: Any) -> SandboxConfig:
    """Return the configuration that the options of run and repl ask for, streaming to `output`."""
    fields: dict[str, Any] = dict(more)
    if output is not None:
        fields["on_output"] = output.write
    if args.timeout is not None:
        fields["timeout_ms"] = args.timeout * 1000
    if args.files is not None:
        fields["workspace"] = Path(args.files)
    fields.update(packages=args.packages, allow_source=args.allow_source)
    fields.update(image_fields(args))
    if args.context is not None:
        fields["context"] = read_context(args.context)
    config = backend_config(args, policy=policy_from(args), guard=args.guard, **fields)
    if output is None or config.backend == "remote":  # a service has a limit of its own
        return config
    # One more, so that the writer sees that there is more than it writes.
    return dataclasses.replace(config, max_output_length=STREAM_LIMIT + 1)


def image_fields(args: Namespace) -> dict[str, Any]:
    """Return what the options about an image say."""
    names = ("image", "writable_root", "user", "workdir", "entrypoint")
    return {name: getattr(args, name) for name in names}


def backend_config(args: Namespace, **fields: Any) -> SandboxConfig:
    """Return the configuration that the options about the backend ask for, with `fields` added."""
    if args.python is not None and fields.get("image") is None:
        check_python(args.python)
    level, url = args.min_isolation, getattr(args, "url", None)
    if url is None and hasattr(args, "url") and not args.backend and not backend_is_chosen():
        url = service_from_environment()[0]
    if url is not None and args.backend not in (None, "remote"):
        raise ConfigError(f"--url is for the backend remote, not {args.backend}: leave one out")
    return SandboxConfig(
        backend="remote" if url is not None else args.backend or "",
        url=url,
        python=args.python,
        min_isolation=None if level is None else Isolation.parse(level),
        network=NetworkPolicy.of(getattr(args, "allow_host", None)),
        **fields,
    )


def check_python(python: str) -> None:
    """Raise ConfigError, in words about the option, if --python cannot be used."""
    from atoll.launch import interpreter  # noqa: PLC0415 - of Linux, and seldom needed

    try:
        interpreter.resolve(python)
    except BackendUnavailableError as exc:
        raise ConfigError(f"--python: {exc.reason}. {exc.hint}".rstrip()) from None


def policy_from(args: Namespace) -> ExecutionPolicy:
    """Return the limits, mounts and variables of the options; defaults for the others."""
    given = {"memory_bytes": args.memory, "disk_bytes": args.disk}
    given["max_processes"] = args.processes
    fields: dict[str, Any] = {name: value for name, value in given.items() if value is not ...}
    fields["env"] = variables(args)
    fields["mounts"] = tuple(_mount(*parts) for parts in getattr(args, "mount", ()))
    return ExecutionPolicy(**fields)


def _mount(source: str, target: str, writable: bool) -> Mount:  # noqa: FBT001 - as it was parsed
    path = Path(os.path.abspath(os.path.expanduser(source)))
    try:
        status = os.stat(path)
    except OSError as exc:
        raise ConfigError(f"--mount: cannot use {source}: {exc.strerror}") from None
    if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
        raise ConfigError(f"--mount: {source} is neither a file nor a folder")
    return Mount(source=path, target=target, writable=writable)


def read_code(args: Namespace) -> str:
    """Return the program to run: from -c, from stdin or from a file."""
    if args.code is not None:
        return str(args.code)
    if args.file == STDIN and args.context == STDIN:
        raise ConfigError("code and context cannot both come from stdin: give one as a file")
    if args.file == STDIN:
        return _readable("stdin", _read_stdin).removeprefix("\ufeff")
    path = Path(args.file)
    return _readable(args.file, lambda: _source(path))


def read_context(name: str) -> Context | str:
    """Return a text file as a context shared with the sandbox, not copied; or all of stdin."""
    path = Path(name)
    if name == STDIN:
        return _readable("stdin", _read_stdin)
    return _readable(name, lambda: _load_context(path))


def _load_context(path: Path) -> Context | str:
    if stat.S_ISFIFO(path.stat().st_mode):  # as in --context <(command)
        return _text(path, "utf-8")
    _refuse_device(path)
    return Context.from_file(path)


def _source(path: Path) -> str:
    """Return the text of a program, in the encoding that it declares (PEP 263), as Python would."""
    _refuse_device(path)
    data = path.read_bytes()
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError:  # not UTF-8, or an unknown encoding
        encoding = "utf-8"
    return io.StringIO(data.decode(encoding), newline=None).read()


def _text(path: Path, encoding: str) -> str:
    _refuse_device(path)
    return path.read_text(encoding)


def _refuse_device(path: Path) -> None:
    """Raise OSError for a device such as /dev/zero, which may never end."""
    mode = path.stat().st_mode
    if stat.S_ISBLK(mode) or (stat.S_ISCHR(mode) and not path.samefile(os.devnull)):
        raise OSError(errno.EINVAL, "it is a device, not a file")


def _read_stdin() -> str:
    require_stdin()
    return sys.stdin.buffer.read().decode("utf-8")


def _readable(name: str, read: Callable[[], T]) -> T:
    """Return what `read` returns; ConfigError names the wrong value of `name`."""
    try:
        return read()
    except ConfigError:
        raise
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{name} is not UTF-8 text (byte {exc.start:,})") from None
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or exc
        raise ConfigError(f"cannot read {name}: {reason}") from None
