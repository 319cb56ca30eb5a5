"""The guest as a process of its own: serves its channel, runs shell commands, can clone itself."""

from __future__ import annotations

import os
import resource
import sys

from ..agent.bridge import Bridge
from ..cells import delta, script, shell
from ..cells.children import ImportableMain
from ..cells.repl import Repl
from ..core import memory, rights
from ..core.channel import ChannelClosedError
from ..shared import kinds, rpc
from ..state import clone, leftovers
from .server import Server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.channel import Channel
    from ..core.hidden import HiddenPackage
    from ..core.interrupt import InterruptGate
    from ..core.streams import StandardStreams
    from ..shared.messages import (
        CodeParams,
        CommandEnd,
        Initialized,
        InitializeParams,
        Json,
        Outcome,
        ShellParams,
    )

READY = rpc.notification("ready", {"python": list(sys.version_info[:3])})
REHEARSALS = 32
"""More than the interpreter takes to specialise code."""
REHEARSED = ("print('')\n1", "_ = 1")
"""Cells that end with an expression, and with another statement: they are compiled differently."""
ONE_CELL_MS = 50
"""In which the host ends a guest that was for one cell: it need not prepare for another."""
MAX_ANSWERED, REHEARSED_MEMORY = 1 << 16, 1 << 50
CLONE_FDS = 4
"""Channel and streams of a clone, which come on its status socket."""


class BecameClone(BaseException):
    """Raised in a clone: the parent answers the request that made it."""


class ProcessServer(Server):
    """Serves requests from a channel; contexts and states come as descriptors."""

    folders_have_ctime = True

    def __init__(
        self,
        channel: Channel,
        gate: InterruptGate,
        streams: StandardStreams,
        folder: str,
        *,
        runtime: HiddenPackage,
    ) -> None:
        passed = rights.Descriptors()
        super().__init__(channel, gate, streams, passed, folder, runtime=runtime)
        self._channel, self._kept, self._own_gate = channel, streams, gate
        self._repl.before_code, self._repl.after_code = gate.allow_signals, gate.hold_signals
        self._pid, self._rehearsed = os.getpid(), False
        self._methods.update(fork=self._fork, shell=self._shell)
        self._main = ImportableMain(
            self._repl.module,
            self._offered,
            self._repl.preloaded,
            runtime,
            lambda: [*Bridge.NAMES, *self._tools],
        )
        self._methods["interrupts"] = lambda _params: {"seen": gate.seen}

    def _initialize(self, params: InitializeParams) -> Initialized:
        answer = super()._initialize(params)
        self._main.serve_multiprocessing()
        self._own_gate.serve_asyncio()
        self._own_gate.serve_signals()
        memory.serve_threads(self._renew_memory)
        return answer

    def _renew_memory(self, stack: int) -> None:
        self._memory.renew(stack)  # whichever there is by then: a session may start anew

    def rehearse(self) -> None:
        """Do in a zygote what all its guests would do: be initialized as most are, run cells.

        Cells are run until the interpreter has specialised the code that runs for one. Such code
        reads fewer objects, so a guest copies fewer of the pages that it shares with its zygote.
        """
        self._initialize({"private_folder": True})
        self._elsewhere = leftovers.mounted_elsewhere()  # a guest's folders have nothing else
        self._rehearsed = True
        kinds.bytes_of(kinds.base64_of(b""))
        kept = self._repl, self._files, sys.modules["__main__"]
        limit = resource.getrlimit(resource.RLIMIT_DATA)
        self._repl = Repl()
        self._limit_memory(REHEARSED_MEMORY)
        try:
            self._rehearse_cells()
        finally:
            self._repl, self._files, sys.modules["__main__"] = kept
            resource.setrlimit(resource.RLIMIT_DATA, limit)
        self._make_streams()

    def _make_streams(self) -> None:
        """Make the streams of a guest's first cell, over a pipe as a guest has it."""
        own, pipe = [os.dup(1), os.dup(2)], os.pipe()
        for fd in (1, 2):
            os.dup2(pipe[1], fd)
        self._kept.make()
        for fd in (1, 2):
            os.dup2(own[fd - 1], fd)
        for fd in (*own, *pipe):
            os.close(fd)

    def _rehearse_cells(self) -> None:
        """Answer requests as a guest does, on pipes that are closed afterwards."""
        requests, answers = os.pipe(), os.pipe()
        try:
            self._kept.keep(requests[1])
            self._channel.reopen(requests[0], answers[1])
            for number in range(REHEARSALS):
                for code in REHEARSED:
                    os.write(requests[1], rpc.request(str(number), "execute", {"code": code}))
                    self._serve_next()
                    os.read(answers[0], MAX_ANSWERED)
        finally:
            self._channel.reopen(-1, -1)
            self._kept.forget()
            for fd in (*requests, *answers):
                os.close(fd)

    def begin(self, memory_bytes: int | None, inherited: int) -> None:
        """Note what differs among the guests of a zygote: process and memory limit.

        `inherited` are bytes that the zygote holds: they do not count against the limit.
        """
        self._pid, self._inherited, self._empty_since = os.getpid(), inherited, None
        self._memory.allow(memory_bytes, inherited)
        self._own_gate.forget_signals()
        if self._rehearsed:  # the streams are made, too
            self._memory.renew(measured=True)
        else:
            self.prepare()

    def measure(self) -> None:
        """Measure, in a zygote that is about to serve, what the memory limit of guests needs."""
        self._memory.measure()

    def serve(self) -> None:
        """Answer requests until the host closes the channel."""
        self._channel.send(READY)
        patience = ONE_CELL_MS
        while True:
            try:
                self._serve_next(patience)
            except BecameClone:
                self.prepare()
                self._channel.send(READY)
            except ChannelClosedError:
                return
            patience = 0

    def _serve_next(self, patience: int = 0) -> None:
        """Answer a request, and prepare for the next unless the host closes within `patience`."""
        message = self._channel.next_request()
        self._channel.send(self.answer(message))
        if patience:
            self._channel.await_end(patience)
        self.prepare()

    def _cell_ended(self, exit_code: int = 0) -> None:
        if os.getpid() != self._pid:  # the cell forked, and this is the child at the cell's end
            self._streams.flush()
            os._exit(exit_code)

    def _run(self, params: CodeParams) -> Outcome:
        """Run a cell, or a program, with its standard input."""
        if "stdin" in params:
            with script.Input(kinds.bytes_of(params.pop("stdin"))):
                return self._run(params)
        if params.get("script"):
            return script.run(self._repl, params["code"], self._folder)
        return super()._run(params)

    def _shell(self, params: ShellParams) -> CommandEnd:
        """Run a command; the files that it changes are not counted for the next cell."""
        apart = params.get("merge_stderr") is False
        streams = (self._kept.output, self._kept.errors if apart else self._kept.output)
        self._own_gate.allow_signals()  # a command inherits those that are blocked
        try:
            answer = shell.run(params, self._start_folder, streams, self._own_gate)
        finally:
            self._own_gate.hold_signals()
        self._cell_ended()
        if self._private:
            self._files = delta.scan(self._folder)
        return answer

    def _fork(self, _params: Json) -> Json:
        """Fork this process; the clone uses the status socket that the host has sent."""
        self._reap_clones()
        status = -1
        try:
            status = rights.receive()
            keep_numbers = clone.keep_random()
            pid = clone.fork()
        except OSError as exc:
            if status >= 0:
                os.close(status)
            raise ValueError("no clone can be had: {}".format(exc)) from None
        if pid == 0:
            keep_numbers()
            self._become_clone(status)
        os.close(status)
        self._clones.append(pid)
        return {"forked": True}

    def _become_clone(self, status: int) -> None:
        """Set the child up as a clone and raise BecameClone; the parent answers the request."""
        fds: list[int] = []
        try:
            fds = clone.receive_fds(status, CLONE_FDS)
            clone.enter(status, self._folder)
            requests, answers, errors, output = self._kept.move_up(fds)
        except BaseException as exc:
            if fds:
                os.write(fds[2], str(exc).encode("utf-8", "replace"))  # the host's error says it
            os._exit(1)
        self._channel.reopen(requests, answers)
        self._kept.redirect(output, errors)
        self._own_gate.seen = 0
        self._repl.renew_in_clone()
        self._pid, self._clones = os.getpid(), []
        # The clone's files are copies: their inodes differ from those that the origin has seen.
        self._files, self._empty_since = delta.scan(self._folder), None
        raise BecameClone

    def _reap_clones(self) -> None:
        for pid in list(self._clones):
            try:
                ended, _ = os.waitpid(pid, os.WNOHANG)
            except OSError:
                ended = pid  # guest code was faster
            if ended:
                self._clones.remove(pid)
