"""The worker: a process that serves one guest behind the guard. Started by `sandbox`."""

from __future__ import annotations

import fcntl
import os
import re
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

from atoll.backends.restricted import checked_stdlib
from atoll.backends.restricted.access import Access, refused
from atoll.backends.restricted.audit import Auditor
from atoll.backends.restricted.classes import StandIns
from atoll.backends.restricted.rewrite import LAST, compile_checked
from atoll.guest.cells import magics, repl
from atoll.guest.core import context
from atoll.guest.core.channel import Channel, ChannelClosedError
from atoll.guest.core.hidden import HiddenPackage
from atoll.guest.core.interrupt import InterruptGate
from atoll.guest.core.streams import StandardStreams
from atoll.guest.entry.server import Server
from atoll.guest.shared import rpc, values
from atoll.sandbox import guard
from atoll.text.tables import names_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.guest.cells.splitting import Compiled
    from atoll.guest.core.ports import Stream
    from atoll.guest.shared.messages import (
        Initialized,
        InitializeParams,
        Outcome,
        ToolsParams,
        Variable,
        VariableParams,
    )


_HERE = os.path.dirname(os.path.abspath(__file__))
_MAX_CHAINED = 100
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
    for _ in range(_MAX_CHAINED):
        if exc is None:
            return
        trace = exc.__traceback__
        while trace is not None and trace.tb_next is not None:
            if trace.tb_next.tb_frame.f_code.co_filename.startswith(_HERE):
                trace.tb_next = trace.tb_next.tb_next
            else:
                trace = trace.tb_next
        exc = exc.__cause__ or exc.__context__


OUTPUT_FD, CONTEXT_FD = 3, 4
FIRST_HIGH_FD = 64
NO_FOLDER = "/nonexistent"
METHODS = names_in("""
    initialize execute validate get_variable has_variable variables set_variable tools
""")
FORBIDDEN = ("path", "frame", "series", "index", "timestamp", "pandas.timedelta", "missing")
"""Kinds of values whose methods open files, so that code could do it without an import."""


def main() -> NoReturn:
    """Serve until the host closes the channel."""
    sys.argv[:] = [""]  # guest code can read this list, which names files of the host
    requests, answers = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_HIGH_FD) for fd in (0, 1))
    os.dup2(OUTPUT_FD, 1)
    os.close(OUTPUT_FD)
    os.close(0)
    os.open(os.devnull, os.O_RDONLY)
    time.tzset()
    checked_stdlib.mend_library()
    values.forbid(*FORBIDDEN)
    gate = InterruptGate()
    RestrictedServer(Channel(requests, answers, gate), gate, Auditor()).serve()
    os._exit(0)


class RestrictedServer(Server):
    """A guest without files, states and processes."""

    own_files = False

    def __init__(self, channel: Channel, gate: InterruptGate, auditor: Auditor) -> None:
        streams, runtime = StandardStreams(), HiddenPackage("atoll")
        streams.keep(FIRST_HIGH_FD)
        runtime.hide()
        super().__init__(channel, gate, streams, InheritedContext(), NO_FOLDER, runtime=runtime)
        self._channel, self._auditor = channel, auditor
        self._repl: RestrictedRepl = RestrictedRepl(auditor.trusted)
        self._methods = {name: self._methods[name] for name in METHODS}
        self._methods["interrupts"] = lambda _params: {"seen": gate.seen}

    def serve(self) -> None:
        """Answer requests until the host closes the channel."""
        self.prepare()
        self._channel.send(rpc.notification("ready", {"python": list(sys.version_info[:3])}))
        try:
            while True:
                self._channel.send(self.answer(self._channel.next_request()))
                self.prepare()
        except ChannelClosedError:
            return

    def prepare(self) -> None:
        """Set up streams and the memory limit, before any guest code runs."""
        with self._auditor.trusted():
            super().prepare()

    def _initialize(self, params: InitializeParams) -> Initialized:
        answer = super()._initialize(params)
        self._repl.builtins.update(self._offered)
        del self._repl.builtins[magics.NAME]  # magics run programs
        self._auditor.arm()
        return answer

    def _set_tools(self, params: ToolsParams) -> Variable:
        before = self._tools
        with self._auditor.trusted():
            answer = super()._set_tools(params)
        for name in before | self._tools:
            self._repl.builtins.pop(name, None)
            if name in self._offered:
                self._repl.builtins[name] = self._offered[name]
        return answer

    def _set_variable(self, params: VariableParams) -> Variable:
        if str(params["name"]).startswith("_"):
            raise ValueError("names that begin with an underscore are not the guest's here")
        with self._auditor.trusted():  # decoding may import modules; no guest code runs
            return super()._set_variable(params)


class InheritedContext:
    """The context's memory file, which the worker inherited."""

    def text(self, width: int, length: int, ascii_only: bool) -> tuple[str, bool]:  # noqa: FBT001
        """Return the text, and whether it is shared instead of copied."""
        return context.load(CONTEXT_FD, width, length, ascii_only)

    def stream(self) -> Stream:
        """Raise an error: this backend has no states."""
        raise ValueError("this backend neither saves nor restores")
