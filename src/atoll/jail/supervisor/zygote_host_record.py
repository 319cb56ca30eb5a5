"""The supervisor's record of a zygote host: its zygote, and the guests that were forked off it.

The zygote may die at any moment: the zygote host starts another, waiting requests stay queued, and
forked guests live on.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import socket
from typing import TYPE_CHECKING

from atoll.jail.supervisor import packets
from atoll.jail.supervisor.pidfds import send_signal
from atoll.jail.supervisor.spec import GUEST
from atoll.jail.supervisor.started_jail import StartedRecord
from atoll.jail.walls import writable_root

if TYPE_CHECKING:
    import selectors

    from atoll.jail.supervisor.spec import ZygoteHostSpec
    from atoll.jail.zygote.forked_guest import ForkedGuestRecord

NOTHING = "nothing yet"


class ZygoteHostRecord(StartedRecord):
    """One zygote host: its control socket, its zygote's socket, and its guests."""

    def __init__(
        self, spec: ZygoteHostSpec, lease: socket.socket, selector: selectors.BaseSelector
    ) -> None:
        super().__init__(spec, lease, None, selector)
        self.name, self.binds = spec.name, spec.binds
        self.root = writable_root.ROOT if spec.root and spec.root.writable else ""
        """Where guests have their roots, if each has its own."""
        self.user = spec.root.user if spec.root else GUEST
        self._control, self.their_control = packets.pair()
        self._control.setblocking(False)
        self._zygote: socket.socket | None = None
        self._zygote_pidfds: list[int] = []
        """The zygote's, if there is one."""
        self._warm = self._retired = False
        self._numbers = itertools.count(1)
        self._records: dict[int, ForkedGuestRecord] = {}
        self._by_pid: dict[int, ForkedGuestRecord] = {}
        self._waiting: list[ForkedGuestRecord] = []

    def forked(self, pid: int) -> None:
        """Note the pid of the first process."""
        super().forked(pid)
        self.their_control.close()
        self._watch(self._control.fileno(), self._on_zygote_host)

    def abandon(self) -> None:
        """Release everything if the fork failed."""
        super().abandon()
        self._control.close()
        self.their_control.close()

    def admit(self, record: ForkedGuestRecord) -> int:
        """Register a guest that is to be forked; return its number."""
        number = next(self._numbers)
        self._records[number] = record
        return number

    def fork_guest(self, record: ForkedGuestRecord) -> None:
        """Request the guest from the zygote, or queue it until there is one."""
        if self._failure:
            record.zygote_host_lost()
            return
        if self._zygote is None or not self._warm:
            self._waiting.append(record)
            return
        try:
            packets.send(self._zygote, "fork", record.given(), **record.request())
        except BlockingIOError:
            self._waiting.append(record)
        except OSError:
            record.zygote_lost()
        else:
            record.sent()

    def _give_up(self, reason: str) -> None:
        """Fork no more guests: those that run live on, and this ends with the last one."""
        self.fail(reason)
        self._lose_zygote()
        waiting, self._waiting = self._waiting, []
        for record in waiting:
            record.zygote_host_lost()
        self.retire()

    def forget(self, record: ForkedGuestRecord) -> None:
        """Remove the record of a guest that has ended."""
        self._records.pop(record.number, None)
        self._by_pid.pop(record.zygote_host_pid, None)
        if record in self._waiting:
            self._waiting.remove(record)
        self.out_of_use()

    def retire(self) -> None:
        """End with the last guest and the last live clone of one.

        A guest whose end was reported does not count, unless clones of it live in its jail.
        """
        self._retired = True
        if not any(record.in_use for record in self._records.values()):
            self.kill()

    def wake(self) -> None:
        """Let the zygote host and the zygote go on, if they were stopped."""
        for pidfd in (self._pidfd, *self._zygote_pidfds):
            send_signal(pidfd, signal.SIGCONT)

    def expect_move(self) -> None:
        """Let the zygote host wait for what the kernel waits for before it moves a process."""
        with contextlib.suppress(OSError):  # it has ended, or is stopped: the supervisor waits then
            packets.send(self._control, "move")

    def out_of_use(self) -> None:
        """Note that a guest's jail is not in use any more, though processes may be left there."""
        if self._retired:
            self.retire()

    def _on_zygote_host(self) -> None:
        message = _receive(self._control)
        if message is None:
            self._unwatch(self._control.fileno())
        elif message.kind == "reaped":
            for pid, status in message.fields["ends"]:
                record = self._by_pid.pop(pid, None)
                if record is not None:
                    record.ended(status)
        elif message.kind == "zygote":
            self._meet_zygote(*message.fds)
        elif message.kind == "fatal":
            self._give_up(message.fields["reason"])

    def _meet_zygote(self, fd: int, pidfd: int) -> None:
        self._lose_zygote()
        self._zygote, self._zygote_pidfds = socket.socket(fileno=fd), [pidfd]
        self._zygote.setblocking(False)
        self._watch(fd, self._on_zygote)

    def _on_zygote(self) -> None:
        assert self._zygote is not None
        message = _receive(self._zygote)
        if message is None:
            self._lose_zygote()
            return
        if message.kind == "ready":
            self._warm = True
            with contextlib.suppress(OSError):  # if it has ended, its pidfd reports it
                packets.send(self._control, "warm")
            self.tell("started", zygote=message.fields)
        elif message.kind != NOTHING:
            self._on_guest(message)
        # Send queued requests: there is a zygote, or room again in its socket.
        waiting, self._waiting = self._waiting, []
        for record in waiting:
            self.fork_guest(record)

    def _on_guest(self, message: packets.Message) -> None:
        """Handle a message about a guest, from itself or from the zygote."""
        record = self._records.get(message.fields["number"])
        if record is None:
            packets.close_all(message.fds)
        elif message.kind == "entered":
            self._by_pid[message.fields["pid"]] = record
            record.entered(message.fields["pid"], message.fds)
        elif message.kind == "ended":
            record.ended(message.fields["status"], *message.fds)
        elif message.kind == "not_forked":
            record.not_forked(message.fields["reason"])
        else:
            record.fail(message.fields["reason"])

    def _lose_zygote(self) -> None:
        if self._zygote is None:
            return
        self._unwatch(self._zygote.fileno())
        self._zygote.close()
        packets.close_all(self._zygote_pidfds)
        self._zygote, self._zygote_pidfds, self._warm = None, [], False
        for record in list(self._records.values()):
            if record.forking:
                record.zygote_lost()
            else:
                record.orphaned()

    def end_reason(self, otherwise: str = "zygote host: it was ended") -> str:
        """Return why no guest can be forked here any more."""
        return self._failure or otherwise

    def _release(self) -> None:
        """End waiting guests, also if the zygote host never started."""
        super()._release()
        for record in list(self._records.values()):
            record.zygote_host_lost()
        self._unwatch(self._control.fileno())
        self._control.close()
        self._lose_zygote()


def _receive(sock: socket.socket) -> packets.Message | None:
    """Return the next message, or NOTHING if there is none yet; None at the end."""
    try:
        return packets.receive(sock)
    except BlockingIOError:
        return packets.Message(NOTHING)
    except OSError:
        return None
