"""Prints the traceback of a cell, whatever guest code has done to the modules that could."""

from __future__ import annotations

from ..core import private

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types
    from typing import Any

MOST_FRAMES = 40
HEAD = "Traceback (most recent call last):\n"


def format_exception(
    exc: BaseException, frames: types.TracebackType | None, error: str, sources: dict[str, str]
) -> str:
    """Return the traceback as Python prints it; a plainer one if its module no longer works."""
    try:
        text = _by_module(exc, frames)
    except KeyboardInterrupt:
        raise
    except BaseException:
        text = ""  # guest code may have put anything in the place of a function
    return text or _plain(frames, error, sources)


def _by_module(exc: BaseException, frames: Any) -> str:
    parts = private.import_shown("traceback").format_exception(type(exc), exc, frames)
    return "".join(parts) if type(parts) is list else ""


def _plain(frames: types.TracebackType | None, error: str, sources: dict[str, str]) -> str:
    """Return the frames with the lines of cells, and the error."""
    lines = [HEAD] if frames is not None else []
    while frames is not None and len(lines) < MOST_FRAMES:
        code = frames.tb_frame.f_code
        where = '  File "{}", line {}, in {}\n'
        lines.append(where.format(code.co_filename, frames.tb_lineno, code.co_name))
        source = sources.get(code.co_filename, "").split("\n")
        if 0 < frames.tb_lineno <= len(source):
            lines.append("    {}\n".format(source[frames.tb_lineno - 1].strip()))
        frames = frames.tb_next
    return "".join(lines) + error + "\n"
