"""Runs cells in one lasting namespace, the module `__main__`. Every backend runs cells by this."""

from __future__ import annotations

import builtins
import sys

from ..core import explain, private
from ..core.imports import StandInFinder, when_loaded
from ..core.preloaded import Preloaded
from ..core.streams import complain
from ..shared import values
from . import bidi, display
from .sources import CellSources, format_exception
from .splitting import compile_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types
    from typing import Any, Callable

    from ..core.hidden import HiddenPackage
    from ..shared.messages import Fault, Names, Outcome
    from .awaiting import SessionLoop
    from .magic_commands import Magics
    from .splitting import Compiled

MAX_ERROR = 10_000
MAX_ERROR_ARGS = 20
MAX_NAME = 200
VALUE_ITEMS = 100_000
VALUE_BYTES = 4 << 20
INTERRUPTED_EXIT = 130
"""The exit code of a Python that ends with a KeyboardInterrupt."""
CO_COROUTINE = 0x80
COMPILER_ERRORS = (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError)
_NO_CELL = (KeyboardInterrupt, RecursionError, MemoryError)
"""What may be raised before a cell has begun."""
_PROBE = compile("0", "<probe>", "eval")
IPYTHON = {
    "IPython": True,
    "IPython.core": True,
    "IPython.core.display": False,
    "IPython.core.display_functions": False,
    "IPython.display": False,
}
"""Modules that display values; whether each is a package."""
_hooks = ((sys.gettrace, sys.settrace), (sys.getprofile, sys.setprofile))


class BrokenRuntimeError(BaseException):
    """Guest code has broken what runs cells: the session cannot go on."""


class Repl:
    """One namespace and the cells that ran in it."""

    def __init__(self, runtime: HiddenPackage | None = None) -> None:
        self.module = type(sys)("__main__")
        self.namespace: Names = self.module.__dict__
        self.offered: Names = {}
        """What the host offers to guest code, as built-ins."""
        self.preloaded = Preloaded(self.namespace)
        self._runtime = runtime
        self._sources = CellSources()
        self._count = 0
        self._script = ""
        self._is_program = False
        self._loop: SessionLoop | None = None
        self._magics: Magics | None = None
        self._shown = display.Shown()
        self.before_code: Callable[[], None] = _nothing
        self.after_code: Callable[[], None] = _nothing
        """Called before and after code of a cell runs."""
        self._tracers: list[Any] = [None for _ in _hooks]
        self._at_end: list[Callable[[], None]] = []
        """What magics have left to do when the cell has ended."""

    def run(self, code: str) -> Outcome:
        """Run a cell and return its outcome, with the value of a last expression.

        An exception of the cell is an outcome, too: nothing is raised.
        """
        self._shown = display.Shown()
        outcome, value = self._run(code)
        if outcome["kind"] != "interrupted":  # time is up then
            self._shown.collect(value)
        if self._shown.displays:
            outcome["displays"] = self._shown.displays
        return outcome

    def display(
        self, *values: Any, raw: bool = False, display_id: Any = None, **_options: Any
    ) -> Any:
        """Show values as a notebook does: print each, and add its richer forms to the result.

        With `raw`, each value is a dict of such forms by their media types. With `display_id`,
        return a handle that shows further values.
        """
        for value in values:
            bundle = display.Bundle(value) if raw else value
            print(repr(bundle))  # noqa: T201 - to where guest code prints
            self._shown.add(bundle)
        if display_id is None:
            return None
        return self._load("ipython").replaced(self.offered["display"])["DisplayHandle"](display_id)

    def validate(self, code: str) -> Fault:
        """Return whether `code` compiles as a cell, or where and why not; nothing of it runs."""
        try:
            with _Unwarned():
                self._compiled(code, "<sandbox>")
        except SyntaxError as exc:
            return {"valid": False, "line": exc.lineno, "message": exc.msg}
        except COMPILER_ERRORS as exc:
            message = "{}: {}".format(type(exc).__name__, exc)
            return {"valid": False, "line": None, "message": message}
        return {"valid": True}

    def name_script(self, name: str = "") -> None:
        """Have tracebacks name the first cell after the script that it is, as Python does."""
        if name.endswith(".py") and name.isprintable():
            import os

            self._script = name
            self.namespace["__file__"] = os.path.join(os.getcwd(), os.path.basename(name))

    def serve_inspect(self) -> None:
        """Let `inspect` find the source of classes that cells define, once it is imported."""
        self._sources.serve_inspect()

    def serve_ipython(self) -> None:
        """Let `IPython.display` show values in the cell's result, with or without IPython."""
        show = self.offered["display"]  # the same object: a saved state knows it by identity
        for name, is_package in IPYTHON.items():
            if not is_package:
                when_loaded(name, lambda module: self._load("ipython").redirect(module, show))
        sys.meta_path.append(
            StandInFinder(IPYTHON, lambda name: self._load("ipython").contents(name, show))
        )

    def magic(self, *args: Any) -> Any:
        """Run a magic: the cell's `!ls` or `%time` was rewritten to a call of this."""
        if self._magics is None:
            self._magics = self._load("magic_commands").Magics(
                self.namespace, self._at_end, self._load
            )
        return self._magics.run(sys._getframe(1), *args)  # noqa: SLF001 - names of the caller

    def waiting_tasks(self) -> int:
        """Return how many tasks go on when the next cell awaits."""
        return 0 if self._loop is None else self._loop.waiting_tasks()

    def renew_in_clone(self) -> None:
        """Have nothing in common any more with the session that this process was forked from."""
        if self._loop is not None:
            self._loop.renew_in_clone()

    def _run(self, code: str) -> tuple[Outcome, Any]:
        sys.modules["__main__"] = self.module
        self._count += 1
        is_script = self._script and self._count == 1
        name = self._script if is_script else "<cell {}>".format(self._count)
        if not code.isascii():
            complain(bidi.warning(code), "")
        try:
            compiled, text = self._compiled(code, name)
        except (KeyboardInterrupt, *COMPILER_ERRORS) as exc:
            return self.failed(exc), None
        except BaseException as exc:
            raise _broken("code is no longer compiled", exc) from None
        self._sources.remember(name, text)
        self.namespace.setdefault("__builtins__", builtins)
        try:
            try:
                value = self._evaluate(*compiled)
            finally:
                self._finish()
            return self._value(value), value
        except BrokenRuntimeError:
            raise
        except BaseException as exc:
            return self.failed(exc), None

    def be_script(self, path: str, code: str, module: types.ModuleType) -> None:
        """Have tracebacks show a program as it is, without advice for those who write cells."""
        self.module, self.namespace = module, vars(module)
        self._script, self._is_program = path, True
        self._sources.remember(path, code)

    def failed(self, exc: BaseException) -> Outcome:
        """Return the outcome of a cell that raised."""
        if isinstance(exc, SystemExit):
            return _exited(exc)
        return self._failure(exc, "interrupted" if isinstance(exc, KeyboardInterrupt) else "error")

    def _compiled(self, code: str, name: str) -> tuple[Compiled, str]:
        """Compile a cell as plain Python; with `await` and magics, or unwrapped, if it is not.

        Return also its text, as it was compiled.
        """
        try:
            return compile_plain(code, name), code
        except SyntaxError as exc:
            compiling = self._load_or_raise("compiling", exc)
        try:
            return compiling.compile_cell(code, name), code
        except SyntaxError:
            bare = compiling.unwrap(code)
            if bare == code:
                raise
        return compiling.compile_cell(bare, name), bare

    def _evaluate(self, body: types.CodeType, last: types.CodeType | None) -> Any:
        """Run the statements and return the value of the last expression."""
        flags = body.co_flags if last is None else body.co_flags | last.co_flags
        if flags & CO_COROUTINE and self._loop is None:
            self._loop = self._load("awaiting").SessionLoop()
        try:
            self.before_code()
            if flags & CO_COROUTINE:
                return self._loop.run(_awaited((body, last), self.namespace))  # type: ignore[union-attr]
            return self._traced(body, last)
        finally:
            self.after_code()

    def _traced(self, body: types.CodeType, last: types.CodeType | None) -> Any:
        """Run a cell with the functions of sys.settrace and sys.setprofile that cells have set.

        They are not called for the runtime, which an exception of theirs would break.
        """
        for (_, put), tracer in zip(_hooks, self._tracers):
            if tracer is not None:
                put(tracer)
        try:
            eval(body, self.namespace)
            return None if last is None else eval(last, self.namespace)
        except _NO_CELL:
            raise
        except BaseException as exc:
            if not _has_begun(exc.__traceback__, body, last) and not _can_run():
                raise _broken("code no longer runs", exc) from None
            raise
        finally:
            for at, (get, put) in enumerate(_hooks):
                self._tracers[at] = tracer = get()
                if tracer is not None:  # here and now: a function would be traced
                    try:
                        put(None)
                    except BaseException:
                        put(None)

    def _finish(self) -> None:
        """Do what magics have left to do, the latest first."""
        while self._at_end:
            self._at_end.pop()()

    def _load(self, name: str) -> Any:
        """Import a module of the runtime that few cells need."""
        if self._runtime is None:
            return __import__(name, globals(), None, ("*",), 1)
        with self._runtime:
            return __import__(name, globals(), None, ("*",), 1)

    def _load_or_raise(self, name: str, exc: BaseException) -> Any:
        """Import a module of the runtime; raise `exc` if guest code has broken imports."""
        try:
            return self._load(name)
        except KeyboardInterrupt:
            raise
        except BaseException:
            raise exc from None

    def _value(self, value: Any) -> Outcome:
        outcome: Outcome = {"kind": "ok", "exit_code": 0}
        if value is not None:
            self.namespace["_"] = value
            outcome["value_repr"] = values.short_repr(value)
            outcome["value"] = _small_value(value, outcome["value_repr"])
        return outcome

    def _failure(self, exc: BaseException, kind: str) -> Outcome:
        """Return the outcome of a cell that raised, and print its traceback to stderr."""
        if not self._is_program:
            explain.add_advice(exc, self.offered, self.namespace, self._load)
        error_type = values.type_name(type(exc))[:MAX_NAME]
        error = _describe(exc, error_type)
        self._sources.publish()
        frames = _own_frames(exc, self._script)
        complain(format_exception(exc, frames, error, self._sources.kept), "")
        exit_code = INTERRUPTED_EXIT if isinstance(exc, KeyboardInterrupt) else 1
        return {
            "kind": kind,
            "exit_code": exit_code,
            "error": error,
            "error_type": error_type,
            "error_args": _error_args(exc),
        }


class _Unwarned:
    """Compile without warnings, if guest code has left the module that shows them as it was."""

    def __enter__(self) -> None:
        self._kept: Any = None
        try:
            warnings = private.import_shown("warnings")
            kept = warnings.catch_warnings()
            kept.__enter__()
            self._kept = kept
            warnings.simplefilter("ignore")
        except Exception:
            pass

    def __exit__(self, *exc: object) -> None:
        try:
            if self._kept is not None:
                self._kept.__exit__(*exc)
        except Exception:
            pass


def _nothing() -> None:
    """Do nothing."""


def _broken(what: str, exc: BaseException) -> BrokenRuntimeError:
    return BrokenRuntimeError("{}: {}".format(what, _describe(exc, values.type_name(type(exc)))))


def _has_begun(
    trace: types.TracebackType | None, body: types.CodeType, last: types.CodeType | None
) -> bool:
    """Return whether an exception has come out of the cell; an audit hook raises before it."""
    while trace is not None:
        if trace.tb_frame.f_code is body or trace.tb_frame.f_code is last:
            return True
        trace = trace.tb_next
    return False


def _can_run() -> bool:
    """Return whether code runs at all: a handler of a signal raises once, an audit hook always."""
    try:
        eval(_PROBE, {})
    except KeyboardInterrupt:
        raise
    except BaseException:
        return False
    return True


async def _awaited(parts: tuple[types.CodeType | None, ...], namespace: Names) -> Any:
    """Run the parts of a cell that awaits; return the value of the last."""
    value = None
    for part in filter(None, parts):
        value = eval(part, namespace)
        if part.co_flags & CO_COROUTINE:
            value = await value
    return value if parts[-1] else None


def _small_value(value: Any, text: str, max_bytes: int = VALUE_BYTES) -> Any:
    try:
        return values.encode(value, VALUE_ITEMS, max_bytes)
    except Exception:  # too large, or of a class of the guest's that may raise anything
        name = values.type_name(type(value))
        return {values.TAG: "object", "type": name, "v": text, "why": values.TOO_LARGE}


def _exited(exc: SystemExit) -> Outcome:
    """Return the outcome of a cell that called sys.exit(), as the interpreter would take it."""
    code: Any = 1
    try:
        code = exc.code
        text = "" if code is None or isinstance(code, int) else str(code)
    except Exception:  # a class of the guest's
        text = "<the exit code could not be shown>"
    number = 0 if code is None else int(code) & 0xFF if isinstance(code, int) else 1
    if text:
        complain(text[:MAX_ERROR])
    error_type = values.type_name(type(exc))[:MAX_NAME]
    outcome: Outcome = {"kind": "exited", "exit_code": number, "error_type": error_type}
    if number:
        outcome["error"] = _describe(exc, error_type)
        outcome["error_args"] = _error_args(exc)
    return outcome


def _describe(exc: BaseException, error_type: str) -> str:
    try:
        text = str(exc)
    except Exception:
        text = "<the message could not be shown>"
    if len(text) > MAX_ERROR:
        left = "... [{:,} more characters]".format(len(text) - MAX_ERROR)
        text = text[:MAX_ERROR] + left
    return "{}: {}".format(error_type, text) if text else error_type


def _error_args(exc: BaseException) -> list[Any]:
    """Return the arguments of an exception; a note replaces those that cannot cross."""
    try:
        given = exc.args[:MAX_ERROR_ARGS]
    except Exception:  # a class of the guest's
        return []
    return [
        _small_value(value, values.short_repr(value), VALUE_BYTES // len(given)) for value in given
    ]


def _own_frames(exc: BaseException, script: str) -> types.TracebackType | None:
    """Return the traceback from the cell or script on, without the frames of the runtime."""
    first = exc.__traceback__
    while first is not None:
        name = first.tb_frame.f_code.co_filename
        if name.startswith("<cell ") or name == script:
            break
        first = first.tb_next
    frame = first
    while frame is not None:
        following = frame.tb_next
        while following is not None and _is_ours(following.tb_frame):
            following = following.tb_next
        frame.tb_next = following
        frame = following
    return first


def _is_ours(frame: types.FrameType) -> bool:
    """Return whether a frame is the runtime's: its lines are nothing that guest code can mend."""
    return private.is_runtime(frame.f_globals.get("__package__"))
