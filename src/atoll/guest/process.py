"""The guest as a process of its own: serves its channel, runs shell commands, can clone itself."""

from __future__ import annotations

import os
import sys

from . import clone, delta, rights, rpc, shell
from .channel import ChannelClosedError
from .server import Server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .channel import Channel
    from .hidden import HiddenPackage
    from .interrupt import InterruptGate
    from .streams import StandardStreams

CLONE_FDS = 5
"""Channel, streams and status socket of a clone."""


class BecameClone(BaseException):
    """Raised in a clone: the parent answers the request that made it."""


class ProcessServer(Server):
    """Serves requests from a channel; contexts and states come as descriptors."""

    def __init__(
        self,
        channel: Channel,
        gate: InterruptGate,
        streams: StandardStreams,
        folder: str,
        *,
        runtime: HiddenPackage,
        inherited: int = 0,
    ) -> None:
        gifts = rights.Descriptors()
        super().__init__(
            channel, gate, streams, gifts, folder, runtime=runtime, inherited=inherited
        )
        self._channel, self._kept, self._own_gate = channel, streams, gate
        self._pid = os.getpid()
        self._methods.update(fork=self._fork, shell=self._shell)
        self._methods["interrupts"] = lambda _params: {"seen": gate.seen}

    def serve(self) -> None:
        """Answer requests until the host closes the channel."""
        self._say_ready()
        while True:
            try:
                message = self._channel.next_request()
                self._channel.send(self.answer(message))
                self.prepare()
            except BecameClone:
                self._say_ready()
            except ChannelClosedError:
                return

    def _say_ready(self) -> None:
        self.prepare()
        self._channel.send(rpc.notification("ready", {"python": list(sys.version_info[:3])}))

    def _cell_ended(self) -> None:
        if os.getpid() != self._pid:  # the cell forked, and this is the child at the cell's end
            self._streams.flush()
            os._exit(0)

    def _shell(self, params: dict[str, Any]) -> dict[str, Any]:
        """Run a command; the files that it changes are not counted for the next cell."""
        answer = shell.run(params["command"], self._folder, self._kept.output, self._own_gate)
        self._cell_ended()
        if self._private:
            self._files = delta.scan(self._folder)
        return answer

    def _fork(self, _params: dict[str, Any]) -> dict[str, Any]:
        """Fork this process; the clone uses the descriptors that the host has sent."""
        self._reap_clones()
        fds: list[int] = []
        try:
            fds += [rights.receive() for _ in range(CLONE_FDS)]
            pid = os.fork()
        except OSError as exc:
            _close_all(fds)
            raise ValueError("no clone can be had: {}".format(exc)) from None
        if pid == 0:
            self._become_clone(fds)
        _close_all(fds)
        self._clones.append(pid)
        return {"forked": True}

    def _become_clone(self, fds: list[int]) -> None:
        """Set the child up as a clone and raise BecameClone; the parent answers the request."""
        *fds, status = fds
        try:
            clone.enter(status, self._folder)
            requests, answers, errors, output = self._kept.move_up(fds)
        except BaseException as exc:
            os.write(fds[2], str(exc).encode("utf-8", "replace"))  # the host adds it to its error
            os._exit(1)
        self._channel.reopen(requests, answers)
        self._kept.redirect(output, errors)
        self._own_gate.seen = 0
        self._repl.renew_in_clone()
        self._pid, self._clones = os.getpid(), []
        raise BecameClone

    def _reap_clones(self) -> None:
        for pid in list(self._clones):
            try:
                ended, _ = os.waitpid(pid, os.WNOHANG)
            except OSError:
                ended = pid  # guest code was faster
            if ended:
                self._clones.remove(pid)


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
