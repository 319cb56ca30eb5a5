"""A second check at run time, by the interpreter's audit events: most are refused for guest code.

An audit hook cannot be removed. It is not isolation either, because not every operation raises an
event; it stops operations that the first check missed before they reach the system.
"""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
from typing import TYPE_CHECKING, Any

from atoll.backends.restricted.access import refused
from atoll.guest.agent import chain
from atoll.text.tables import names_in

if TYPE_CHECKING:
    from collections.abc import Iterator

HARMLESS = names_in("""
    import exec compile marshal.loads sys._getframe sys._getframemodulename builtins.id time.sleep
    array.__new__ sys.excepthook sys.unraisablehook object.__delattr__
    cpython.PyInterpreterState_Clear cpython._PySys_ClearAuditHooks
""")
FOLDERS = names_in("os.listdir os.scandir")
THREADS = names_in("_thread.start_new_thread _thread.start_joinable_thread")
"""Raised from Python 3.12 and 3.13 on."""
INSIDE = names_in("gi_frame gi_code cr_frame cr_code ag_frame ag_code")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Auditor:
    """Refuses events while it is armed, except in trusted blocks."""

    def __init__(self) -> None:
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        paths = {sys.prefix, sys.base_prefix, package, *sysconfig.get_paths().values(), *sys.path}
        self._readable = tuple(os.path.realpath(path).rstrip("/") + "/" for path in paths if path)
        """The folders of the interpreter and its libraries."""
        self._trusted = 1
        sys.addaudithook(self._on_event)

    def arm(self) -> None:
        """Refuse events from now on."""
        self._trusted = 0

    @contextlib.contextmanager
    def trusted(self) -> Iterator[None]:
        """Allow events of the runtime while the block runs; no guest code runs in it."""
        self._trusted += 1
        try:
            yield
        finally:
            self._trusted -= 1

    def _on_event(self, event: str, args: tuple[Any, ...]) -> None:
        if self._trusted or event in HARMLESS:
            return
        if event == "open" and self._is_reading(*args):
            return
        if event in FOLDERS and self._is_library(args[0]):
            return
        if event in THREADS and chain.is_own_thread(args[0]):
            return
        if event == "object.__getattr__" and args[1] not in INSIDE:
            return
        if event == "object.__setattr__" and args[1] != "__code__":
            return
        raise refused(f"the operation {event}")

    def _is_reading(self, path: Any, mode: str | None, flags: int | None) -> bool:
        reads = mode in (None, "r", "rb") and not (flags or 0) & _WRITING
        return reads and self._is_library(path)

    def _is_library(self, path: Any) -> bool:
        if not isinstance(path, str) or ".." in path.split("/"):
            return False
        return (path + "/").startswith(self._readable)
