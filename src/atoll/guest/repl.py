"""Runs cells in one lasting namespace, as the `__main__` module: the heart of every backend."""

from __future__ import annotations

import _ast
import sys
import warnings

from . import display, values
from .streams import complain

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types
    from typing import Any

MAX_ERROR = 10_000
MAX_NAME = 200
KEPT_CELLS = 200
VALUE_ITEMS = 10_000
VALUE_BYTES = 1 << 20
SOURCE_READERS = ("traceback", "inspect", "linecache", "logging", "pdb", "unittest", "doctest")


class Repl:
    """One namespace and the cells that ran in it."""

    def __init__(self) -> None:
        self.module = type(sys)("__main__")
        self._sources: dict[str, str] = {}
        self._count = 0
        self.namespace: dict[str, Any] = self.module.__dict__

    def run(self, code: str) -> dict[str, Any]:
        """Run a cell: its outcome, with a last expression's value; its faults do not raise."""
        outcome, value = self._run(code)
        if outcome["kind"] != "interrupted":  # time is up then
            displays = display.collect(value)
            if displays:
                outcome["displays"] = displays
        return outcome

    def _run(self, code: str) -> tuple[dict[str, Any], Any]:
        sys.modules["__main__"] = self.module
        self._count += 1
        name = "<cell {}>".format(self._count)
        try:
            body, last = _compile(code, name)
            self._remember(name, code)
            exec(body, self.namespace)
            if last is None:
                return {"kind": "ok", "exit_code": 0}, None
            value = eval(last, self.namespace)
            return self._value(value), value
        except SystemExit as exc:
            return _exited(exc), None
        except KeyboardInterrupt as exc:
            return self._failure(exc, "interrupted"), None
        except BaseException as exc:
            return self._failure(exc, "error"), None

    def _value(self, value: Any) -> dict[str, Any]:
        outcome: dict[str, Any] = {"kind": "ok", "exit_code": 0}
        if value is not None:
            self.namespace["_"] = value
            outcome["value_repr"] = values.short_repr(value)
            outcome["value"] = _small_value(value, outcome["value_repr"])
        return outcome

    def _remember(self, name: str, code: str) -> None:
        """Keep the source of recent cells for tracebacks; linecache is costly, so when needed."""
        old = "<cell {}>".format(self._count - KEPT_CELLS)
        self._sources[name] = code
        self._sources.pop(old, None)
        if "linecache" in sys.modules or any(word in code for word in SOURCE_READERS):
            self._publish_sources()
            sys.modules["linecache"].cache.pop(old, None)

    def _publish_sources(self) -> None:
        import linecache

        while self._sources:
            name, code = self._sources.popitem()
            linecache.cache[name] = (len(code), None, code.splitlines(True), name)

    def _failure(self, exc: BaseException, kind: str) -> dict[str, Any]:
        """The outcome of a cell that raised; the traceback goes to stderr."""
        error_type = values.type_name(type(exc))[:MAX_NAME]
        error = _describe(exc, error_type)
        try:
            import traceback

            self._publish_sources()
            traceback.print_exception(type(exc), exc, _own_frames(exc), file=sys.stderr)
        except Exception:
            complain(error)
        return {"kind": kind, "exit_code": 1, "error": error, "error_type": error_type}


def validate(code: str) -> bool:
    """Whether `code` compiles. Runs nothing of it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(code, "<sandbox>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        return False
    return True


def _compile(code: str, name: str) -> tuple[types.CodeType, types.CodeType | None]:
    tree: Any = compile(code, name, "exec", _ast.PyCF_ONLY_AST, dont_inherit=True)
    last = None
    if tree.body and isinstance(tree.body[-1], _ast.Expr):
        last = _ast.Expression(tree.body.pop().value)
    body = compile(tree, name, "exec", dont_inherit=True)
    return body, None if last is None else compile(last, name, "eval", dont_inherit=True)


def _small_value(value: Any, text: str) -> Any:
    try:
        return values.encode(value, VALUE_ITEMS, VALUE_BYTES)
    except (ValueError, RecursionError):
        name = values.type_name(type(value))
        return {values.TAG: "object", "type": name, "v": text, "why": values.TOO_LARGE}


def _exited(exc: SystemExit) -> dict[str, Any]:
    code = exc.code
    if code is None or isinstance(code, int):
        number = 0 if code is None else int(code) & 0xFF
    else:
        number = 1
        complain(values.short_repr(code) if not isinstance(code, str) else code[:MAX_ERROR])
    outcome: dict[str, Any] = {"kind": "exited", "exit_code": number}
    if number:
        outcome.update(error=_describe(exc, "SystemExit"), error_type="SystemExit")
    return outcome


def _describe(exc: BaseException, error_type: str) -> str:
    try:
        text = str(exc)
    except Exception:
        text = "<the message could not be shown>"
    text = text if len(text) <= MAX_ERROR else text[:MAX_ERROR] + "..."
    return "{}: {}".format(error_type, text) if text else error_type


def _own_frames(exc: BaseException) -> types.TracebackType | None:
    """The traceback from the cell on, without the runtime's frames before it and at its end."""
    first = exc.__traceback__
    while first is not None and not first.tb_frame.f_code.co_filename.startswith("<cell "):
        first = first.tb_next
    last = frame = first
    while frame is not None:
        if not _is_ours(frame.tb_frame):
            last = frame
        frame = frame.tb_next
    if last is not None:
        last.tb_next = None
    return first


def _is_ours(frame: types.FrameType) -> bool:
    """Whether the runtime runs in a frame: what it calls for a cell is not the cell's to mend."""
    return frame.f_globals.get("__package__") == __package__
