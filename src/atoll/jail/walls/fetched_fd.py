"""A descriptor that a helper opens in other namespaces, for the supervisor.

SECURITY: the supervisor itself never enters a namespace of a guest. The helper runs in one for as
long as it opens a single thing, and is killed if that takes longer than HELPER_SECONDS.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, NoReturn

from atoll.jail.supervisor import packets

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

HELPER_SECONDS = 5.0


def fetch(open_it: Callable[[], int]) -> int:
    """Return the descriptor that `open_it` opens in a child of this process; OSError if none."""
    ours, theirs = packets.pair()
    with ours:
        with theirs:
            helper = os.fork()
            if helper == 0:
                _help(open_it, theirs)
        try:
            ours.settimeout(HELPER_SECONDS)
            answer = packets.receive(ours)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(helper, signal.SIGKILL)
            os.waitpid(helper, 0)
    if answer is None or not answer.fds:
        raise OSError(0, answer.fields["reason"] if answer else "its helper was ended")
    return answer.fds[0]


def _help(open_it: Callable[[], int], answer: socket.socket) -> NoReturn:
    """In the helper. SECURITY: nothing may unwind into the loop of the supervisor, its parent."""
    try:
        packets.send(answer, "opened", [open_it()])
    except Exception as exc:  # noqa: BLE001 - whatever it is, the host is told
        with contextlib.suppress(OSError):
            packets.send(answer, "failed", reason=f"{type(exc).__name__}: {exc}"[:1000])
    finally:
        os._exit(0)
