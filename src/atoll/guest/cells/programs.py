"""Shell commands that cells start with `!`: their output is read and passed on as it comes."""

from __future__ import annotations

import codecs
import os
import select

from . import shell
from .installing import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

CHUNK = 1 << 16
PATIENCE_MS = 100


def run(text: str, write: Callable[[str], Any]) -> int | None:
    """Run a command in the current folder and return its exit code; an interrupt ends it."""
    command = shell.Command()
    reading, writing = os.pipe()
    try:
        try:
            command.start({"command": text}, os.getcwd(), (writing, writing))
        except (OSError, StopIteration) as exc:
            raise UsageError("!{}: no shell can be started here: {}".format(text, exc)) from None
        finally:
            os.close(writing)
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        while True:
            if not _readable(reading, PATIENCE_MS):
                # What it left in the background holds the pipe open. It may have written its last
                # words after the look at the pipe, and before it ended: look again.
                if command.has_ended() and not _readable(reading, 0):
                    return command.wait()
                continue
            data = os.read(reading, CHUNK)
            write(decode(data, not data))
            if not data:
                return command.wait()
    except BaseException:
        command.end()
        raise
    finally:
        os.close(reading)
        command.forget()


def _readable(fd: int, wait_ms: int) -> bool:
    """Wait for output; return whether there is some, or its end."""
    watch = select.poll()
    watch.register(fd, select.POLLIN)
    return bool(watch.poll(wait_ms))
