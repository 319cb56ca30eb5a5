"""Pidfds of children, and signals by them: a number could be that of another process by then."""

from __future__ import annotations

import contextlib
import os
import signal


def pidfd_of(child: int) -> int:
    """Return a pidfd of a child; without one nothing would reap it, so it is ended."""
    try:
        return os.pidfd_open(child)
    except OSError:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise


def send_signal(pidfd: int | None, number: signal.Signals) -> None:
    """Send a signal to a process, if it is known and still there."""
    if pidfd is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(pidfd, number)
