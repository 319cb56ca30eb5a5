"""The handle on a guest process: the lease of its jail, its channel, its output pipes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.errors import SandboxStartError
from atoll.jail.supervisor.client import Lease, supervisor
from atoll.jail.supervisor.spec import Limits
from atoll.sandbox.channel import HostChannel

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from atoll.guest.shared.messages import InitializeParams
    from atoll.jail.supervisor.spec import Spec
    from atoll.policy import ExecutionPolicy

PIPE_SIZE = 1 << 20


@dataclass(frozen=True, slots=True)
class GuestHandle:
    """A guest that is running or starting, before its handshake."""

    lease: Lease
    channel: HostChannel
    output_fds: list[int]
    applied: InitializeParams | None = None
    """The handshake parameters that its zygote has already applied, if any."""

    async def close(self) -> None:
        """End the guest."""
        self.channel.close()
        for fd in self.output_fds:
            os.close(fd)
        await self.lease.close()


def start_guest(spec: Spec, *more: int) -> GuestHandle:
    """Start a guest in the running event loop."""
    return request_guest(spec, *more).open()


@dataclass(frozen=True, slots=True)
class StartingGuest:
    """A guest that was requested without an event loop; open() attaches it to the running one."""

    lease: socket.socket
    channel_fds: tuple[int, int]
    output_fds: list[int]

    @property
    def ready(self) -> bool:
        """Whether the guest has sent its first message."""
        return _polls(self.channel_fds[0], select.POLLIN)

    @property
    def ended(self) -> bool:
        """Whether the supervisor has closed the lease."""
        return hung_up(self.lease)

    def open(
        self, make_lease: Callable[[socket.socket, HostChannel], Lease] | None = None
    ) -> GuestHandle:
        """Return the handle, attached to the running event loop."""
        channel = HostChannel(*self.channel_fds)
        lease = Lease(self.lease) if make_lease is None else make_lease(self.lease, channel)
        return GuestHandle(lease, channel, self.output_fds)

    def close(self) -> None:
        """End the guest."""
        self.lease.close()
        for fd in (*self.channel_fds, *self.output_fds):
            os.close(fd)


def request_guest(spec: Spec, *more: int) -> StartingGuest:
    """Request a guest; `more` descriptors follow its own, and the caller closes them."""
    with pipes(4) as (requests, answers, output, errors):
        given = [requests[0], answers[1], errors[1], output[1]]
        lease = supervisor.ask(spec, [*given, *more])
        for fd in given:
            os.close(fd)
    return StartingGuest(lease, (answers[0], requests[1]), [output[0], errors[0]])


def hung_up(sock: socket.socket) -> bool:
    """Return whether the peer has closed, even if data is still to be read."""
    return _polls(sock.fileno(), select.POLLRDHUP)


def _polls(fd: int, event: int) -> bool:
    poll = select.poll()
    poll.register(fd, event)
    return bool(poll.poll(0))


def limits_of(policy: ExecutionPolicy, context_size: int) -> Limits:
    """Return the limits of a policy that the kernel enforces."""
    return Limits(
        memory=policy.memory_bytes,
        processes=policy.max_processes,
        disk=policy.disk_bytes,
        file_size=policy.file_size_bytes,
        open_files=policy.max_open_files,
        context=context_size,
        folders=policy.folders,
    )


@contextlib.contextmanager
def pipes(count: int) -> Iterator[list[tuple[int, int]]]:
    """Open pipes; close them all if the block raises. SandboxStartError if one cannot be opened."""
    pipes: list[tuple[int, int]] = []
    try:
        while len(pipes) < count:
            pipes.append(_open_pipe())
        yield pipes
    except BaseException:
        for pipe in pipes:
            for fd in pipe:
                with contextlib.suppress(OSError):
                    os.close(fd)
        raise


def _open_pipe() -> tuple[int, int]:
    try:
        read, write = os.pipe2(os.O_CLOEXEC)
    except OSError as exc:
        raise SandboxStartError("pipe", str(exc)) from exc
    with contextlib.suppress(PermissionError):  # the user's pipes are over their limit
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
    return read, write
