"""The guest's cells in the `restricted` backend: rewritten, and run with safe built-ins."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any

from atoll.backends.restricted import checked_stdlib
from atoll.backends.restricted.access import Access
from atoll.backends.restricted.classes import StandIns
from atoll.backends.restricted.refusal import refused
from atoll.backends.restricted.rewrite import LAST, compile_checked
from atoll.guest.cells import repl
from atoll.sandbox import guard

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.guest.cells.splitting import Compiled
    from atoll.guest.shared.messages import Outcome

_HERE = os.path.dirname(os.path.abspath(__file__))
_MOST_CHAINED = 100
_OUTSIDE = re.compile(r"'await' outside|asynchronous comprehension outside|'async \w+' outside")


class RestrictedRepl(repl.Repl):
    """One namespace whose code has only safe built-ins and offered modules."""

    def __init__(self, trusted: Callable[[], Any]) -> None:
        super().__init__()
        access = Access(self.namespace)
        self.builtins = checked_stdlib.make_builtins(
            self.namespace, access, StandIns(access), trusted
        )
        self.namespace["__builtins__"] = self.builtins

    def _run(self, code: str) -> tuple[Outcome, Any]:
        sys.modules["__main__"] = self.module
        self._count += 1
        name = f"<cell {self._count}>"
        try:
            try:
                body = compile_checked(code, name)
            except SyntaxError as exc:
                if _OUTSIDE.search(str(exc)):
                    raise refused("await outside a function") from None
                raise
            self._sources.remember(name, code)
            exec(body, self.namespace)  # noqa: S102 - what the backend is for
            value = self.namespace.pop(LAST, None)
            return self._value(value), value
        except BaseException as exc:  # noqa: BLE001 - a cell may raise anything at all
            return self.failed(exc), None

    def _compiled(self, code: str, name: str) -> tuple[Compiled, str]:
        """Compile a cell for validate(): without await, and with magics that do nothing."""
        reading = guard.read(code, "restricted")
        usable = code if reading.violations else reading.code
        return (compile(usable, name, "exec", dont_inherit=True), None), code

    def _failure(self, exc: BaseException, kind: str) -> Outcome:
        self.namespace.pop(LAST, None)
        _leave_out_our_frames(exc)
        return super()._failure(exc, kind)


def _leave_out_our_frames(exc: BaseException | None) -> None:
    """Remove the backend's frames, so that a traceback ends at the guest's own line."""
    for _ in range(_MOST_CHAINED):
        if exc is None:
            return
        trace = exc.__traceback__
        while trace is not None and trace.tb_next is not None:
            if trace.tb_next.tb_frame.f_code.co_filename.startswith(_HERE):
                trace.tb_next = trace.tb_next.tb_next
            else:
                trace = trace.tb_next
        exc = exc.__cause__ or exc.__context__
