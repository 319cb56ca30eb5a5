"""The host's part in a live clone: new pipes for it, the warden told, the guest asked."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING, Any

from atoll.bridge import HostBridge
from atoll.channel import ChannelEndedError, HostChannel
from atoll.errors import SandboxError, SandboxStartError
from atoll.launch.greeting import START_SECONDS, Launched
from atoll.launch.line import Line, pipes
from atoll.session import GuestSession

if TYPE_CHECKING:
    from atoll.config import REPLConfig
    from atoll.context import Context
    from atoll.jail.client import Lease

REFUSAL_SECONDS = 0.25


async def clone(
    guest: Launched, config: REPLConfig, context: Any, shared: Context | None
) -> Launched:
    """A live clone of a guest; SandboxStartError if it does not come up."""
    line = await _fork_line(guest, config.timeout_ms)
    bridge = HostBridge(config, lambda: shared.value if shared is not None else context)
    line.channel.on_call = bridge.handle
    session = GuestSession(config, line.lease, line.channel, line.output_fds)
    twin = Launched(line.lease, session, bridge, guest.context_shared)
    try:
        await _arrival(line)
    except BaseException as exc:
        if words := session.last_words():
            exc.add_note(f"the clone's last words:\n{words}")
        await twin.close()
        raise
    return twin


async def _fork_line(guest: Launched, timeout_ms: float) -> Line:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # who calls there is known
    with (
        ours,
        theirs,
        pipes(4) as (requests, answers, output, errors),
    ):
        given = [requests[0], answers[1], errors[1], output[1]]
        socket.send_fds(ours, [b"channel and streams"], given)
        lease = guest.lease.branch(ours)
        try:
            guest.lease.give(theirs.fileno())
            await guest.session.fork(timeout_ms)
        except SandboxError as exc:
            why = await _refusal(lease) or exc
            await lease.close()
            raise why from None
        except BaseException:
            await lease.close()
            raise
        for fd in given:
            os.close(fd)  # not before: while we waited, the numbers could have become another's
        channel = HostChannel(answers[0], requests[1])
    return Line(lease, channel, [output[0], errors[0]])


async def _refusal(lease: Lease) -> BaseException | None:
    """Why the warden allows no clone, if that is it: its word may come after the guest's."""
    await asyncio.wait({lease.started}, timeout=REFUSAL_SECONDS)
    return lease.started.exception() if lease.started.done() else None


async def _arrival(line: Line) -> None:
    try:
        async with asyncio.timeout(START_SECONDS):
            await line.lease.started
            await line.channel.ready
    except TimeoutError:
        reason = f"the clone did not come up within {START_SECONDS} s"
        raise SandboxStartError("clone", reason) from None
    except ChannelEndedError as exc:
        report = await asyncio.shield(line.lease.ended)
        raise SandboxStartError("clone", f"{exc}; {report}") from None
