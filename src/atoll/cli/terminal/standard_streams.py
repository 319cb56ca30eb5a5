"""Our own stdin, stdout and stderr: made safe where they are closed; every command uses it."""

from __future__ import annotations

import errno
import os
import sys
from typing import TextIO

from atoll.errors import ConfigError

_MODES = {"stdin": (0, os.O_WRONLY, "r"), "stdout": (1, os.O_RDONLY, "w"), "stderr": (2, 1, "w")}


def reopen_closed() -> None:
    """Put /dev/null where a standard descriptor is closed, as after `<&-`.

    Else the next file that is opened would get its number. It is opened the wrong way round, so
    that using it still fails: with "Bad file descriptor", which is an error message and no crash.
    stderr is opened to be written to: there is no other place for messages.
    """
    for name, (fd, flags, mode) in _MODES.items():
        try:
            os.fstat(fd)
        except OSError:
            null = os.open(os.devnull, flags)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def discard(stream: TextIO) -> None:
    """Discard buffered output, so that the interpreter's exit does not fail on it."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, stream.fileno())
    except (OSError, ValueError):
        return
    finally:
        os.close(null)


def require_stdin() -> None:
    """Raise ConfigError if stdin is closed or cannot be read."""
    try:
        os.read(0, 0)
    except OSError as exc:
        closed = exc.errno == errno.EBADF
        reason = "it is closed" if closed else exc.strerror
        raise ConfigError(f"cannot read stdin: {reason}") from None


def is_piped(fd: int = 0) -> bool:
    """Return whether stdin is a pipe, a socket or a file to read, not a terminal and not closed."""
    try:
        return not os.isatty(fd) and os.read(fd, 0) == b""
    except OSError:
        return False


def say(text: str, who: str = "atoll") -> None:
    """Print a line about what a command does to stderr, at once."""
    print(f"{who}: {text}", file=sys.stderr, flush=True)
