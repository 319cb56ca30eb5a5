"""Attends one jail while its program runs: streams or terminal, proxy, notifications, signals.

It blocks, without an event loop, which a short command would spend most of its time to load; only
a proxy runs in the loop of `portal`.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.errors import ConfigError, SandboxLostError, SandboxStartError
from atoll.jail.supervisor import packets
from atoll.jail.supervisor.spec import Watch
from atoll.jail.supervisor.supervisor_process import supervisor
from atoll.programs import terminal

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from atoll.egress.gateway import Gateway
    from atoll.jail.supervisor.packets import Message
    from atoll.jail.supervisor.spec import JailSpec
    from atoll.programs.refusals import RefusedFile, Watcher
    from atoll.programs.rules import ProgramRules


@dataclass(frozen=True, slots=True)
class JailEnd:
    """How a jail ended."""

    exit: int | None
    signal: int | None
    out_of_memory: bool
    timed_out: bool

    @property
    def code(self) -> int:
        """The exit code, as a shell would have it."""
        return self.exit if self.exit is not None else 128 + (self.signal or signal.SIGKILL)


class Attendant:
    """Runs one jail."""

    def __init__(self, spec: JailSpec, rules: ProgramRules, gateway: Gateway | None) -> None:
        self._spec, self._rules, self._gateway = spec, rules, gateway
        self._stack = contextlib.ExitStack()
        self.refused: tuple[RefusedFile, ...] = ()

    def run(self, seconds: float | None) -> JailEnd:
        """Run the program until it ends, or for so many seconds."""
        ours, theirs = packets.pair()
        with self._stack, ours:
            with theirs:
                given = self._streams()
                self._lease = supervisor.ask(self._spec, [*given, theirs.fileno()])
            with self._lease:  # the jail ends with it
                self._expect("started")
                self._connect_proxy()
                self._take_over(ours)
                packets.send(ours, "go")
                with self._signals_passed_on():
                    return self._wait(seconds)

    def _streams(self) -> list[int]:
        if not self._spec.terminal:
            return self._stack.enter_context(terminal.passed_streams())
        null = os.open(os.devnull, os.O_RDWR)
        self._stack.callback(os.close, null)
        return [null] * 3

    def _expect(self, kind: str) -> Message:
        """Return the next message of the supervisor, which must be of this kind."""
        while True:
            try:
                message = packets.receive(self._lease)
            except ConnectionResetError:  # it left a command unread; its last report is still there
                message = packets.receive(self._lease)
            if message is None:
                raise SandboxLostError("the supervisor has gone, and the sandbox with it")
            if message.kind == "failed":
                step, _, reason = message.fields["reason"].partition(": ")
                raise SandboxStartError(step, reason or step)
            if message.kind == kind:
                return message

    def _connect_proxy(self) -> None:
        if self._gateway is None:
            return
        from atoll.concurrency.portal import Portal  # noqa: PLC0415 - it loads asyncio

        gateway, portal = self._gateway, Portal.shared()
        packets.send(self._lease, "network")
        (listener,) = self._expect("folders").fds or (None,)
        if listener is None:
            raise SandboxStartError("network", "the jail has no loopback")

        async def listen() -> None:
            gateway.listen(listener)

        portal.run(listen())
        self._stack.callback(lambda: portal.run(gateway.close()))

    def _take_over(self, ours: socket.socket) -> None:
        """Take over what pid 1 opened: the master of the terminal, the listener of calls."""
        watched = self._spec.watch is not Watch.NOTHING
        if not (watched or self._spec.terminal):
            return
        message = packets.receive(ours)
        if message is None:
            raise ConfigError("the jail has no terminal: use a pipe, as in `atoll exec CMD | cat`")
        if watched:
            from atoll.programs.refusals import Watcher  # noqa: PLC0415 - only if it is asked for

            watcher = Watcher(self._rules, self._spec.argv, message.fds.pop())
            self._stack.callback(self._close_watcher, watcher)
        for master in message.fds:
            self._stack.callback(os.close, master)
            self._stack.enter_context(terminal.attached(master))

    def _close_watcher(self, watcher: Watcher) -> None:
        watcher.close()
        self.refused = tuple(watcher.refused)

    def _wait(self, seconds: float | None) -> JailEnd:
        timed_out = False
        if seconds is not None and not _is_readable(self._lease, time.monotonic() + seconds):
            timed_out = True
            self._send("kill")
        fields: dict[str, Any] = self._expect("ended").fields
        return JailEnd(fields["exit"], fields["signal"], fields["out_of_memory"], timed_out)

    def _send(self, command: str) -> None:
        with contextlib.suppress(OSError):  # it has ended
            packets.send(self._lease, command)

    @contextlib.contextmanager
    def _signals_passed_on(self) -> Iterator[None]:
        """Interrupt the program at SIGINT and kill its jail at SIGTERM; this process goes on."""
        commands = {signal.SIGINT: "interrupt", signal.SIGTERM: "kill"}
        before = {}
        with contextlib.suppress(ValueError):  # only the main thread may
            for number in commands:
                pass_on = lambda got, _: self._send(commands[got])  # noqa: E731
                before[number] = signal.signal(number, pass_on)
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old)


def _is_readable(sock: socket.socket, deadline: float) -> bool:
    while (left := deadline - time.monotonic()) > 0:
        if select.select([sock], [], [], left)[0]:
            return True
    return False
