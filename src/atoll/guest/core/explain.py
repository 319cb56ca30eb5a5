"""Adds to the message of an exception that ended a cell what would help: a limit, another way."""

from __future__ import annotations

import errno
import sys

from .stdin import NO_KEYBOARD
from .streams import complain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Collection

OTHER_PROCESS = (
    "it exists only in the session's own process: use threads or batch_llm_query instead of "
    "processes"
)
NO_DEBUGGER = "a debugger needs a keyboard, and this sandbox has none: print what you want to see"
DISK_FULL = "the sandbox's own folders are limited (policy: disk_bytes, or --disk)"
OUT_OF_MEMORY = "the sandbox's memory is limited (policy: memory_bytes, or --memory)"
NO_THREAD = "can't start new thread"
TOO_MANY = "processes and threads are limited (policy: max_processes, or --processes)"
NOT_SENT = "it could not be sent to another process: pass what the function needs as an argument"


def add_advice(
    exc: BaseException, offered: Collection[str], own: Collection[str], load: Callable[[str], Any]
) -> None:
    """Extend the message of an exception; names are `offered` by the host or the session's own.

    `load` imports a module of the runtime.
    """
    try:
        if type(exc) is EOFError:
            _no_keyboard(exc)
        elif type(exc) is NameError:
            _name_of_another_process(exc, offered, own)
        elif isinstance(exc, (OSError, MemoryError, RuntimeError)):
            _name_limit(exc)
        elif isinstance(exc, SyntaxError):
            _mark_one_line(exc)
        elif type(exc).__name__ == "BdbQuit" and not exc.args:
            exc.args = (NO_DEBUGGER,)
        elif type(exc).__name__ == "CalledProcessError":
            _not_installed(exc, load("installing"))
        elif type(exc) is ModuleNotFoundError:
            _no_module(exc, load("installing"))
    except Exception:
        pass  # an exception of the guest's own making: its message stays as it is


def _no_keyboard(exc: EOFError) -> None:
    """getpass() found nothing to read."""
    trace = exc.__traceback__
    if exc.args or trace is None:
        return
    while trace.tb_next is not None:
        trace = trace.tb_next
    if trace.tb_frame.f_globals.get("__name__") == "getpass":
        exc.args = (NO_KEYBOARD.replace("input()", "getpass()"),)


def _name_of_another_process(
    exc: NameError, offered: Collection[str], own: Collection[str]
) -> None:
    """A child process did not find what the session has."""
    before, _, rest = str(exc).partition("'")
    name, _, after = rest.partition("'")
    if (before, after) != ("name ", " is not defined"):
        return
    if name in offered:
        exc.args = ("{}: {}".format(exc, OTHER_PROCESS),)
    elif name in own and type(exc.__cause__).__name__.endswith("RemoteTraceback"):
        exc.args = ("{}: {}".format(exc, NOT_SENT),)


def _not_installed(exc: Any, installing: Any) -> None:
    """A program that installs packages has failed: say why on stderr, where it has complained."""
    words = [exc.cmd] if isinstance(exc.cmd, str) else list(map(str, exc.cmd))
    reason = installing.why_it_failed(words)
    if reason:
        complain(reason)


def _no_module(exc: ModuleNotFoundError, installing: Any) -> None:
    """A package is missing: say how to get it. The backends on WebAssembly say so themselves."""
    name = (exc.name or "").partition(".")[0]
    known = name in sys.modules or exc.msg != "No module named '{}'".format(exc.name)
    if name and not known and sys.platform not in ("wasi", "emscripten"):
        package = installing.package_of(name)
        exc.msg = "{}. To have it, {}".format(exc.msg, installing.ADVICE.format([package]))


def _mark_one_line(exc: Any) -> None:
    """Mark where the error begins: Python 3.11 shows no caret for an error of several lines."""
    if exc.end_lineno != exc.lineno:
        exc.end_lineno, exc.end_offset = exc.lineno, 0


def _name_limit(exc: Any) -> None:
    """A limit of the policy was hit: name it."""
    if isinstance(exc, OSError) and exc.errno == errno.EFBIG:
        _file_too_large(exc)
    elif isinstance(exc, OSError) and exc.errno == errno.ENOSPC:
        exc.strerror = "{}: {}".format(exc.strerror, DISK_FULL)
    elif type(exc) is MemoryError and not exc.args:
        exc.args = (OUT_OF_MEMORY,)
    elif type(exc) is RuntimeError and str(exc) == NO_THREAD:
        exc.args = ("{}: {}".format(NO_THREAD, TOO_MANY),)


def _file_too_large(exc: Any) -> None:
    """The limit for one file was hit."""
    if sys.platform != "win32":  # the host imports this file too; no guest runs there
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        if limit != resource.RLIM_INFINITY:
            text = "{}: the limit for one file is {:,} bytes (policy: file_size_bytes)"
            exc.strerror = text.format(exc.strerror, limit)
