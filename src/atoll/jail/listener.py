"""The calls that a filter asks the warden about: what a live clone needs, for a moment.

SECURITY: nothing is ever let through but for a clone that the host asked for, and nothing but
its four calls; the namespaces it makes hold no right over anything it did not make itself. A
guest that asks unasked is refused, and after some times no longer heard: the kernel refuses then.
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

if TYPE_CHECKING:
    import selectors
    from collections.abc import Callable

_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_CONTINUE = 1
_NOTICE, _VERDICT = "=QIIiIQ6Q", "=QqiI"
MOST_REFUSALS = 64


@dataclass(frozen=True, slots=True)
class Question:
    """A process that waits in a system call."""

    ident: int
    pid: int
    call: int
    argument: int


class Listener:
    """One filter's questions. `judge` says whether a call may go on."""

    def __init__(
        self, fd: int, judge: Callable[[Question], bool], selector: selectors.BaseSelector
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
                self._answer(question)
        elif events:
            self.close()  # whoever was under the filter is gone

    def _answer(self, question: Question) -> None:
        try:
            allowed = self._judge(question)
        except OSError:
            allowed = False  # it is gone, and with it what was to be looked at
        self._refusals += not allowed
        verdict = (0, 0, _CONTINUE) if allowed else (0, -errno.EPERM, 0)
        with contextlib.suppress(OSError):  # it may have been killed meanwhile
            fcntl.ioctl(self._fd, _SEND, struct.pack(_VERDICT, question.ident, *verdict))
        if self._refusals > MOST_REFUSALS:
            self.close()

    def _receive(self) -> Question | None:
        """The next question; None if whoever asked was killed before it was heard."""
        buffer = bytearray(struct.calcsize(_NOTICE))
        try:
            fcntl.ioctl(self._fd, _RECEIVE, buffer)
        except OSError:
            return None
        ident, pid, _, call, _, _, argument, *_ = struct.unpack(_NOTICE, buffer)
        return Question(ident, pid, call, argument)
