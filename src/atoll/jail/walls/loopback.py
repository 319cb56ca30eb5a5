"""A listening TCP socket on a jail's own loopback, made for the host: the way to its proxy.

    host: "network" ──▶ supervisor ──fork──▶ helper: enters the jail's network, listens on loopback
      ▲                                        │
      └────── the listening socket ────────────┘   the host accepts; the guest can only connect

SECURITY: no relay runs in the guest, and the jail's network stays empty. The helper enters the
network namespace alone: it sees no file and no process of the guest.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from typing import NoReturn

from atoll.jail.supervisor import packets
from atoll.jail.walls import syscalls, users

PROXY_ADDRESS = ("127.0.0.1", 3128)
BACKLOG = 64
HELPER_SECONDS = 5.0


def listen_in(network: int) -> int:
    """Return a socket that listens on the loopback of a network namespace; OSError if it cannot."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            helper = os.fork()
            if helper == 0:
                _help(network, theirs)
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


def _help(network: int, answer: socket.socket) -> NoReturn:
    """In the helper. SECURITY: nothing may unwind into the loop of the supervisor, its parent."""
    try:
        enter(network)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.bind(PROXY_ADDRESS)
            listener.listen(BACKLOG)
            packets.send(answer, "listening", [listener.fileno()])
    except Exception as exc:  # noqa: BLE001 - whatever it is, the host is told
        with contextlib.suppress(OSError):
            packets.send(answer, "failed", reason=f"{type(exc).__name__}: {exc}"[:1000])
    finally:
        os._exit(0)


def enter(network: int) -> None:
    """Enter a network namespace, and first the user namespace that owns it: rights are there."""
    users.enter_owner(network)
    syscalls.join(network)
