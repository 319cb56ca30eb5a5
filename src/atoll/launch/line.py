"""What leads to a guest: a lease on its jail, a channel, the pipes that it prints to."""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atoll.channel import HostChannel
from atoll.jail.client import Lease, warden
from atoll.jail.spec import Limits

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from atoll.jail.spec import Spec
    from atoll.policy import ExecutionPolicy

PIPE_SIZE = 1 << 20


@dataclass(frozen=True, slots=True)
class Line:
    """What leads to a guest that is there, or on its way, and has not been spoken to."""

    lease: Lease
    channel: HostChannel
    output_fds: list[int]
    said: dict[str, Any] = field(default_factory=dict)
    """The first words that were said to it beforehand, if any."""

    async def close(self) -> None:
        """End the guest unheard."""
        self.channel.close()
        for fd in self.output_fds:
            os.close(fd)
        await self.lease.close()


def open_line(spec: Spec, *more: int) -> Line:
    """Ask the warden for a guest, with everything that it will be spoken to by."""
    return lay(spec, *more).open()


@dataclass(frozen=True, slots=True)
class Laid:
    """A line that nobody listens at yet: its guest comes up meanwhile. It has no loop."""

    lease: socket.socket
    channel_fds: tuple[int, int]
    output_fds: list[int]

    def open(self) -> Line:
        """Listen, in the loop that runs."""
        return Line(Lease(self.lease), HostChannel(*self.channel_fds), self.output_fds)

    def close(self) -> None:
        """End the guest unheard."""
        self.lease.close()
        for fd in (*self.channel_fds, *self.output_fds):
            os.close(fd)


def lay(spec: Spec, *more: int) -> Laid:
    """Ask the warden for a guest; `more` descriptors follow its own, and stay the caller's."""
    with pipes(4) as (requests, answers, output, errors):
        given = [requests[0], answers[1], errors[1], output[1]]
        lease = warden.ask(spec, [*given, *more])
        for fd in given:
            os.close(fd)
    return Laid(lease, (answers[0], requests[1]), [output[0], errors[0]])


def limits_of(policy: ExecutionPolicy, context_size: int) -> Limits:
    """What of a policy the kernel is told."""
    return Limits(
        memory=policy.memory_bytes,
        processes=policy.max_processes,
        disk=policy.disk_bytes,
        file_size=policy.file_size_bytes,
        open_files=policy.max_open_files,
        context=context_size,
    )


@contextlib.contextmanager
def pipes(count: int) -> Iterator[list[tuple[int, int]]]:
    """Pipes that are closed again if one cannot be had, or the block fails."""
    pipes: list[tuple[int, int]] = []
    try:
        for _ in range(count):
            _, write = pipe = os.pipe2(os.O_CLOEXEC)
            pipes.append(pipe)
            with contextlib.suppress(PermissionError):  # the user's pipes are over their limit
                fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        yield pipes
    except BaseException:
        for pipe in pipes:
            for fd in pipe:
                with contextlib.suppress(OSError):
                    os.close(fd)
        raise
