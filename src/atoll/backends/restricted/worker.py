"""The worker: a plain process that serves one guest behind the guard. Started by `launch`.

SECURITY: it has no environment, and no descriptors but its own pipes. The kernel kills it when the
host ends, by the lifeline: a pipe whose closing sends SIGKILL.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

from atoll.backends.restricted import made, walls
from atoll.backends.restricted.audit import Auditor
from atoll.backends.restricted.repl import RestrictedRepl
from atoll.guest.cells import magics
from atoll.guest.core import context
from atoll.guest.core.channel import Channel, ChannelClosedError
from atoll.guest.core.hidden import HiddenPackage
from atoll.guest.core.interrupt import InterruptGate
from atoll.guest.core.streams import StandardStreams
from atoll.guest.entry.server import Server
from atoll.guest.shared import rpc, values

if TYPE_CHECKING:
    from atoll.guest.core.ports import Stream

FIRST_HIGH_FD = 64
F_SETSIG = 10
NO_FOLDER = "/nonexistent"
METHODS = (
    "initialize", "execute", "validate", "get_variable", "has_variable", "variables",
    "set_variable", "tools",
)  # fmt: skip
FORBIDDEN = ("path", "frame", "series", "index", "timestamp", "pandas.timedelta", "missing")
"""Kinds of values whose methods open files, so that code could do it without an import."""


def main(settings: str) -> NoReturn:
    """Serve until the host closes the channel."""
    facts = json.loads(settings)
    sys.argv[:] = [""]  # guest code can read this list, which names files of the host
    _hang_on(facts["lifeline"])
    requests, answers = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_HIGH_FD) for fd in (0, 1))
    os.dup2(facts["output"], 1)
    os.close(facts["output"])
    os.close(0)
    os.open(os.devnull, os.O_RDONLY)
    time.tzset()
    readable = walls.folders()
    made.mend_library()
    values.forbid(*FORBIDDEN)
    auditor = Auditor(readable)
    gate = InterruptGate()
    server = RestrictedServer(Channel(requests, answers, gate), gate, auditor, facts)
    walls.limit(facts["memory"], facts["open_files"])
    if facts["walls"]:
        walls.build(readable)
    server.serve()
    os._exit(0)


class RestrictedServer(Server):
    """A guest without files, states and processes."""

    own_files = False

    def __init__(
        self, channel: Channel, gate: InterruptGate, auditor: Auditor, facts: dict[str, Any]
    ) -> None:
        passed = InheritedContext(facts["context_fd"])
        streams, runtime = StandardStreams(), HiddenPackage("atoll")
        streams.keep(FIRST_HIGH_FD)
        runtime.hide()
        super().__init__(channel, gate, streams, passed, NO_FOLDER, runtime=runtime)
        self._channel, self._auditor = channel, auditor
        self._repl: RestrictedRepl = RestrictedRepl(
            auditor.trusted, policy_guard=facts["guard"] == "restrictedpython"
        )
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

    def _initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        answer = super()._initialize(params)
        self._repl.builtins.update(self._offered)
        del self._repl.builtins[magics.NAME]  # magics run programs
        self._auditor.arm()
        return answer

    def _set_tools(self, params: dict[str, Any]) -> dict[str, Any]:
        before = self._tools
        with self._auditor.trusted():
            answer = super()._set_tools(params)
        for name in before | self._tools:
            self._repl.builtins.pop(name, None)
            if name in self._offered:
                self._repl.builtins[name] = self._offered[name]
        return answer

    def _set_variable(self, params: dict[str, Any]) -> dict[str, Any]:
        if str(params["name"]).startswith("_"):
            raise ValueError("names that begin with an underscore are not the guest's here")
        with self._auditor.trusted():  # decoding may import modules; no guest code runs
            return super()._set_variable(params)


class InheritedContext:
    """The context's memory file, which the worker inherited."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def text(self, width: int, length: int, ascii_only: bool) -> tuple[str, bool]:  # noqa: FBT001
        """Return the text, and whether it is shared instead of copied."""
        assert self._fd is not None
        return context.load(self._fd, width, length, ascii_only)

    def stream(self) -> Stream:
        """Raise an error: this backend has no states."""
        raise ValueError("this backend neither saves nor restores")


def _hang_on(lifeline: int) -> None:
    """Let the kernel send SIGKILL when the other end is closed: guest code cannot delay that."""
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, F_SETSIG, signal.SIGKILL)
    flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
