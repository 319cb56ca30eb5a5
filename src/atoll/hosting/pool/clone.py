"""Makes a live clone of a guest: opens its pipes, tells the supervisor, asks the guest to fork."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING, Any

from atoll.errors import SandboxError, SandboxStartError
from atoll.launch.guest_handle import GuestHandle, pipes
from atoll.launch.handshake import START_SECONDS, RunningGuest
from atoll.sandbox.bridge import HostBridge
from atoll.sandbox.channel import ChannelEndedError, HostChannel
from atoll.sandbox.session import GuestSession

if TYPE_CHECKING:
    from atoll.config import SandboxConfig
    from atoll.jail.supervisor.client import Lease
    from atoll.sandbox.context import Context

REFUSAL_SECONDS = 0.25


async def clone(
    guest: RunningGuest, config: SandboxConfig, context: Any, shared: Context | None
) -> RunningGuest:
    """Return a live clone of a guest; raise SandboxStartError if it does not start."""
    handle = await _fork_handle(guest, config.timeout_ms)
    if guest.network is not None:
        config = guest.network.with_fetch(config)
    bridge = HostBridge(config, lambda: shared.value if shared is not None else context)
    handle.channel.on_call = bridge.handle
    session = GuestSession(config, handle.lease, handle.channel, handle.output_fds)
    network = guest.network.share(config.network) if guest.network else None
    twin = RunningGuest(
        handle.lease,
        session,
        bridge,
        guest.context_shared,
        network=network,
        network_env=guest.network_env,
    )
    try:
        await _await_start(handle)
    except BaseException as exc:
        if words := session.last_words():
            exc.add_note(f"the clone's last words:\n{words}")
        await twin.close()
        raise
    return twin


async def _fork_handle(guest: RunningGuest, timeout_ms: float) -> GuestHandle:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(
        socket.SOL_SOCKET, socket.SO_PASSCRED, 1
    )  # the kernel then reports the sender's pid
    with ours, theirs, pipes(4) as (requests, answers, output, errors):
        given = [requests[0], answers[1], errors[1], output[1]]
        socket.send_fds(ours, [b"channel and streams"], given)
        lease = guest.lease.clone(ours)
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
            os.close(fd)  # not earlier: the numbers could have been reused while we waited
        channel = HostChannel(answers[0], requests[1])
    return GuestHandle(lease, channel, [output[0], errors[0]])


async def _refusal(lease: Lease) -> BaseException | None:
    """Return the supervisor's reason for a refusal; it may arrive after the guest's answer."""
    await asyncio.wait({lease.started}, timeout=REFUSAL_SECONDS)
    return lease.started.exception() if lease.started.done() else None


async def _await_start(handle: GuestHandle) -> None:
    try:
        async with asyncio.timeout(START_SECONDS):
            await handle.lease.started
            await handle.channel.ready
    except TimeoutError:
        reason = f"the clone did not come up within {START_SECONDS} s"
        raise SandboxStartError("clone", reason) from None
    except ChannelEndedError as exc:
        report = await handle.lease.end_report()
        raise SandboxStartError("clone", f"{exc}; {report}") from None
