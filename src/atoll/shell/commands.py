"""Commands for a shell: fixed scripts with arguments that contain no special characters.

SECURITY: no value of a caller becomes part of a script. Names, patterns and contents are passed as
base64 words, which a script decodes into variables.
"""

from __future__ import annotations

import base64
import shlex
from functools import cache
from importlib.resources import files

MAX_COMMAND = 96_000
"""Bytes: the kernel takes 128 KiB as one argument, and a sandbox may quote it once more."""
ROOM_FOR_SCRIPT = 8_000


@cache
def script(*names: str) -> str:
    """Return the text of some scripts, joined."""
    folder = files("atoll.shell") / "scripts"
    return "".join((folder / f"{name}.sh").read_text() for name in names)


def command(text: str, *words: str) -> str:
    """Return a command that runs a script with its arguments in a subshell of any POSIX shell."""
    return " ".join(["sh -c", shlex.quote(text), "sh", *map(shlex.quote, words)])


def encoded(value: str | bytes) -> str:
    """Return text or bytes as a base64 word."""
    data = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    return base64.b64encode(data).decode("ascii")
