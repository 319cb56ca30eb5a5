"""The calls that a filter asks the warden about: for a descriptor, or what a clone needs.

A guest asks for the next descriptor that the host has for it by a call that names none; so no
socket has to stay open in it. SECURITY: nothing is let through but the calls of a clone that
the host asked for. A guest that asks unasked is refused, and after some times no longer heard:
the kernel refuses then.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.jail import seccomp

if TYPE_CHECKING:
    import selectors
    from collections.abc import Callable

_RECEIVE, _SEND, _ADD = 0xC0502100, 0xC0182101, 0x40182103
_CONTINUE = 1
_NOTICE, _VERDICT, _ADDITION = "=QIIiIQ6Q", "=QqiI", "=QIIII"
_ANY = 0xFFFFFFFF
MOST_REFUSALS = 64


@dataclass(frozen=True, slots=True)
class Question:
    """A process that waits in a system call."""

    ident: int
    pid: int
    call: int
    argument: int

    @property
    def wants_gift(self) -> bool:
        """Whether it asks for a descriptor: it names none to enter."""
        return self.call == seccomp.asked_number("setns") and self.argument & _ANY == _ANY


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of it: it goes on, it gets a descriptor (closed here then), or it is refused."""

    allowed: bool = False
    gift: int | None = None


class Listener:
    """One filter's questions. `judge` says what becomes of each."""

    def __init__(
        self, fd: int, judge: Callable[[Question], Verdict], selector: selectors.BaseSelector
    ) -> None:
        self._fd, self._judge, self._selector = fd, judge, selector
        self._refusals = 0
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        selector.register(fd, 1, self._on_event)

    def close(self) -> None:
        """Hear no more: the kernel answers then that there is no such call."""
        if self._fd >= 0:
            self._selector.unregister(self._fd)
            os.close(self._fd)
            self._fd = -1

    @property
    def open(self) -> bool:
        """Whether anybody is heard."""
        return self._fd >= 0

    def _on_event(self) -> None:
        events = dict(self._poll.poll(0)).get(self._fd, 0)
        if events & select.POLLIN:
            question = self._receive()
            if question is not None:
                self._consider(question)
        elif events:
            self.close()  # whoever was under the filter is gone

    def _consider(self, question: Question) -> None:
        try:
            verdict = self._judge(question)
        except OSError:
            verdict = Verdict()  # it is gone, and with it what was to be looked at
        with contextlib.suppress(OSError):  # it may have been killed meanwhile
            self._answer(question, verdict)
        if self._refusals > MOST_REFUSALS:
            self.close()

    def _answer(self, question: Question, verdict: Verdict) -> None:
        if verdict.gift is not None:
            answer = self._give(question, verdict.gift), 0, 0
        elif verdict.allowed:
            answer = 0, 0, _CONTINUE
        else:
            self._refusals += 1
            answer = 0, -errno.EPERM, 0
        fcntl.ioctl(self._fd, _SEND, struct.pack(_VERDICT, question.ident, *answer))

    def _give(self, question: Question, fd: int) -> int:
        """Put a copy of a descriptor into the process; its number there."""
        try:
            request = bytearray(struct.pack(_ADDITION, question.ident, 0, fd, 0, os.O_CLOEXEC))
            return int(fcntl.ioctl(self._fd, _ADD, request))
        finally:
            os.close(fd)

    def _receive(self) -> Question | None:
        """The next question; None if whoever asked was killed before it was heard."""
        buffer = bytearray(struct.calcsize(_NOTICE))
        try:
            fcntl.ioctl(self._fd, _RECEIVE, buffer)
        except OSError:
            return None
        ident, pid, _, call, _, _, argument, *_ = struct.unpack(_NOTICE, buffer)
        return Question(ident, pid, call, argument)
