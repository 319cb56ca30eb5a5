"""A shell command as its caller gives it: checked, and as plain data for a guest or a service."""

from __future__ import annotations

import base64
import binascii
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from atoll.errors import ConfigError
from atoll.policy import check_keys

if TYPE_CHECKING:
    from atoll.guest.shared.messages import ShellParams

MAX_COMMAND_LENGTH = 2 << 20
MAX_STDIN = 12 << 20
"""Bytes that fit into one message."""
MAX_ARGUMENTS = 10_000
_OPTIONS = ("cwd", "env", "stdin", "merge_stderr", "user")
USERS = (None, "root", "guest", "user", 0, 1000)
"""Users that a command may be run as: each is the guest's own, which has no more rights."""

Command = str | Sequence[str]


class CommandOptions(TypedDict, total=False):
    """What `shell` takes beside the command and its timeout."""

    cwd: str | None
    """The folder to run in, absolute or below the working folder; unset: the working folder."""
    env: Mapping[str, str] | None
    """Environment variables beside those that the guest has."""
    stdin: str | bytes | None
    """Standard input; unset: none."""
    merge_stderr: bool
    """Whether stderr is part of the output, in its place; False keeps the two apart."""
    user: str | int | None
    """`root` is accepted, and pretended: a command has the rights of the guest in any case."""


def to_params(command: Command, options: CommandOptions | None = None) -> ShellParams:
    """Return a command as plain data; ConfigError if a guest could not run it as it is."""
    given: Mapping[str, Any] = options or {}
    check_keys("option of shell", given, (*_OPTIONS, "timeout_ms"))
    if given.get("user") not in USERS:
        known = "root, guest and user"
        raise ConfigError(f"there is no user {given['user']!r:.60} in a sandbox: there are {known}")
    params: ShellParams = {}
    if isinstance(command, str):
        check_command(command)
        params["command"] = command
    else:
        params["argv"] = _arguments(command)
    if given.get("cwd") is not None:
        params["cwd"] = _text("cwd", given["cwd"])
    if given.get("env"):
        params["env"] = _environment(given["env"])
    if given.get("stdin") is not None:
        params["stdin"] = encode_stdin(given["stdin"])
    if not given.get("merge_stderr", True):
        params["merge_stderr"] = False
    return params


def from_params(params: Mapping[str, Any]) -> tuple[Command, CommandOptions]:
    """Return the command and options that `to_params` wrote; shell() checks them again."""
    given = [params[name] for name in ("argv", "command") if params.get(name) is not None]
    command = given[0] if len(given) == 1 else None
    if not isinstance(command, str | list):
        raise ConfigError("give either `command`, a text, or `argv`, a list of arguments")
    options = CommandOptions()
    if params.get("cwd") is not None:
        options["cwd"] = params["cwd"]
    if params.get("env") is not None:
        options["env"] = params["env"]
    if params.get("stdin") is not None:
        try:
            options["stdin"] = base64.b64decode(params["stdin"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise ConfigError("stdin is not base64") from None
    if params.get("merge_stderr") is False:
        options["merge_stderr"] = False
    return command, options


def check_command(command: str) -> None:
    """Raise ConfigError for a command that a shell cannot be given."""
    if not isinstance(command, str):
        raise ConfigError(f"a command must be a str, not {type(command).__name__}")
    if not command.strip():
        raise ConfigError("the command is empty: give one that a shell can run")
    if "\0" in command:
        raise ConfigError("the command has a zero byte, which no shell reads: leave it out")
    if len(command) > MAX_COMMAND_LENGTH:
        length = f"{len(command):,} characters, of at most {MAX_COMMAND_LENGTH:,}"
        raise ConfigError(f"the command has {length}: put it into a file and run that")
    try:
        command.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as exc:
        raise ConfigError(f"the command cannot be encoded: {exc.reason}; leave that out") from None


def shown(command: Command) -> str:
    """Return a command as one line, for a log."""
    return command if isinstance(command, str) else shlex.join(command)


def _arguments(command: object) -> list[str]:
    if not isinstance(command, Sequence) or isinstance(command, bytes | bytearray):
        raise ConfigError(f"a command must be a str or a list, not {type(command).__name__}")
    if not 0 < len(command) <= MAX_ARGUMENTS:
        raise ConfigError(f"a command has 1 to {MAX_ARGUMENTS:,} arguments, not {len(command):,}")
    arguments = [_text("an argument", argument) for argument in command]
    if not arguments[0]:
        raise ConfigError("the command has an empty name: give a program that can be run")
    if sum(map(len, arguments)) > MAX_COMMAND_LENGTH:
        raise ConfigError(f"the arguments have over {MAX_COMMAND_LENGTH:,} characters")
    return arguments


def _environment(given: object) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise ConfigError(f"env must map names to texts, not {given!r:.60}")
    for name, value in given.items():
        if not _text("a name in env", name) or "=" in name:
            raise ConfigError(f"not the name of an environment variable: {name!r:.60}")
        _text(f"env[{name!r:.60}]", value)
    return dict(given)


def encode_stdin(given: object) -> str:
    """Return standard input as base64; ConfigError if it is neither text nor bytes, or too long."""
    try:
        data = given.encode("utf-8", "surrogateescape") if isinstance(given, str) else given
    except UnicodeEncodeError as exc:
        raise ConfigError(f"stdin is a text that has no bytes: {exc.reason}: pass bytes") from None
    if not isinstance(data, bytes | bytearray | memoryview):
        raise ConfigError(f"stdin must be a str or bytes, not {type(given).__name__}")
    if len(data) > MAX_STDIN:
        size = f"{len(data):,} bytes, of at most {MAX_STDIN:,}"
        raise ConfigError(f"stdin has {size}: put it into a file and redirect that")
    return base64.b64encode(data).decode("ascii")


def _text(what: str, value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ConfigError(f"{what} must be a str without zero bytes, not {value!r:.60}")
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as exc:
        raise ConfigError(f"{what} cannot be encoded: {exc.reason}") from None
    return value
