"""Keeps the source of recent cells for tracebacks, which it formats, and readers of `linecache`."""

from __future__ import annotations

import io
import sys

from ..core import private
from ..core.imports import when_loaded

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types
    from typing import Any

    from ..shared.messages import Json


MAX_FRAMES = 40
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
    while frames is not None and len(lines) < MAX_FRAMES:
        code = frames.tb_frame.f_code
        where = '  File "{}", line {}, in {}\n'
        lines.append(where.format(code.co_filename, frames.tb_lineno, code.co_name))
        source = sources.get(code.co_filename, "").split("\n")
        if 0 < frames.tb_lineno <= len(source):
            lines.append("    {}\n".format(source[frames.tb_lineno - 1].strip()))
        frames = frames.tb_next
    return "".join(lines) + error + "\n"


KEPT_CELLS = 200
READERS = ("traceback", "inspect", "linecache", "logging", "pdb", "unittest", "doctest")
"""Modules that read `linecache`: a cell that names one may need the sources before it ends."""


def _lines(code: str) -> list[str]:
    """Return the lines of a cell as a file would have them."""
    if "\r" in code:
        return io.StringIO(code if code.endswith("\n") else code + "\n", None).readlines()
    lines = code.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line + "\n" for line in lines]


class CellSources:
    """The sources of the last KEPT_CELLS cells, by the name that their code has: `<cell 3>`."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}
        self._unpublished: list[str] = []
        self._linecache = sys.modules.get("linecache")

    def remember(self, name: str, code: str) -> None:
        """Keep the source of a cell.

        It goes to linecache only when something may read it there: the import costs milliseconds.
        """
        self.kept[name] = code
        self._unpublished.append(name)
        if len(self.kept) > KEPT_CELLS:
            oldest = next(iter(self.kept))
            del self.kept[oldest]
            for cache in self._caches():
                cache.pop(oldest, None)
        if "linecache" in sys.modules or any(word in code for word in READERS):
            self.publish()

    def publish(self) -> None:
        """Put the sources into linecache, as lines that end like those of a file."""
        private.import_shown("linecache")
        for cache in self._caches():
            for name in self._unpublished:
                code = self.kept.get(name)
                if code is not None:
                    cache[name] = (len(code), None, _lines(code), name)
        self._unpublished = []

    def _caches(self) -> list[Json]:
        """Return the cache of linecache, and of the one before if guest code has replaced it.

        Modules that were loaded before, such as traceback, read that.
        """
        shown = sys.modules.get("linecache")
        if self._linecache is None and type(shown) is type(sys):
            self._linecache = shown
        modules = [self._linecache] if shown is self._linecache else [self._linecache, shown]
        result = [module.__dict__.get("cache") for module in modules if type(module) is type(sys)]
        return [cache for cache in result if type(cache) is dict]

    def cell_of(self, kind: type) -> str | None:
        """Return the name of the cell that a class was defined in; None if it is not known."""
        for value in list(vars(kind).values()):
            code = getattr(getattr(value, "__func__", value), "__code__", None)
            name = getattr(code, "co_filename", None)
            if name in self.kept:
                return str(name)
        wanted = "class {}".format(kind.__qualname__.rpartition(".")[2])
        result = [name for name, code in self.kept.items() if wanted in code]
        return result[-1] if result else None

    def serve_inspect(self) -> None:
        """Let inspect.getsource() find classes: it wants a module's file, and cells have none."""
        when_loaded("inspect", self._change_inspect)

    def _change_inspect(self, module: Any) -> None:
        real = module.getfile
        if vars(module).get("__finds_cells__"):
            return

        def getfile(object: Any) -> Any:  # noqa: A002 - as the real one calls it
            own = isinstance(object, type) and getattr(object, "__module__", None) == "__main__"
            return (self.cell_of(object) if own else None) or real(object)

        getfile.__doc__, getfile.__wrapped__ = real.__doc__, real  # type: ignore[attr-defined]
        getfile.__module__ = real.__module__
        module.getfile, module.__finds_cells__ = getfile, True
