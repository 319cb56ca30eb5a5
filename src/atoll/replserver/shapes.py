"""Errors in the format that clients of REPL servers match: the file is "<string>", not a cell."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atoll.types import SandboxResult

_FRAME = re.compile(r'^(\s*File )"<cell \d+>"(, line \d+)', re.MULTILINE)
_PLACE = re.compile(r" \(<cell \d+>, (line \d+)\)\Z")


def error_and_stderr(result: SandboxResult) -> tuple[str | None, str]:
    """Return the result's error and stderr. A SyntaxError of the code itself is one line."""
    error = result.error
    place = _PLACE.search(error) if error else None
    if error is None or place is None:
        return error, _FRAME.sub(r'\1"<string>"\2', result.stderr)
    error = error[: place.start()]
    if result.stderr.startswith("Traceback"):  # raised while code ran, for example by compile()
        return error, _FRAME.sub(r'\1"<string>"\2', result.stderr)
    return error, f"{error} ({place[1]})"
