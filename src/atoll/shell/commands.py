"""Commands for a shell: fixed scripts, and words that no shell sees anything special in.

SECURITY: nothing that a caller gives is ever part of a script. Names, patterns and contents go as
base64 words, and a script decodes them into variables.
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
    """The text of some scripts, one after the other."""
    folder = files("atoll.shell") / "scripts"
    return "".join((folder / f"{name}.sh").read_text() for name in names)


def command(text: str, *words: str) -> str:
    """A script with its words, for whatever shell runs commands there; its state stays as it is."""
    return " ".join(["sh -c", shlex.quote(text), "sh", *map(shlex.quote, words)])


def encoded(value: str | bytes) -> str:
    """A word that stands for any text or bytes."""
    data = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    return base64.b64encode(data).decode("ascii")
