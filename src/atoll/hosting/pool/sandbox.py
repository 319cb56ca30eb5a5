"""A native sandbox whose guest comes out of a pool; started as usual where no zygote can serve.

A guest that was forked off a zygote can be forked again, alive, with all that is in it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from atoll.backends.native.sandbox import NativeLauncher, NativePythonSandbox
from atoll.errors import (
    ConfigError,
    SandboxError,
    SandboxLostError,
    SandboxStartError,
    UnsupportedError,
)
from atoll.launch.guest_handle import GuestHandle, limits_of, pipes
from atoll.launch.handshake import START_SECONDS, RunningGuest
from atoll.policy import Capability, Isolation
from atoll.sandbox.bridge import HostBridge
from atoll.sandbox.channel import ChannelEndedError, HostChannel
from atoll.sandbox.context import Context
from atoll.sandbox.session import GuestSession

if TYPE_CHECKING:
    from atoll.config import SandboxConfig
    from atoll.hosting.pool.pool import Pool
    from atoll.jail.supervisor.client import Lease
    from atoll.sandbox.base import ExecuteOptions
    from atoll.types import SandboxResult


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
    twin.processes.folder = guest.processes.folder
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


SMALL_CONTEXT = 64 << 20
"""Up to here a context fits into what every guest may map anyway."""
MAX_CHECKPOINTS = 64


class PooledLauncher(NativeLauncher):
    """Takes guests from a pool, and clones them."""

    def __init__(self, config: SandboxConfig, pool: Pool, tier: str | None = None) -> None:
        super().__init__(config)
        self.pool = pool
        self.tier = tier or pool.tier(config)
        self.waits_for_handshake = True
        """Whether a guest has answered its handshake before it is used."""

    async def prepare(self) -> Isolation:
        """Prepare as usual; guests with an image or packages by name have a pool of their own."""
        await super().prepare()
        if self.python.image is not None:
            self.pool = self.pool.with_image(self.python, self.image)
        if self.packages.hold is not None:
            self.pool = self.pool.with_packages(self.packages.hold)
        return self.level

    async def launch(
        self, config: SandboxConfig, context: Any, shared: Context | None
    ) -> RunningGuest:
        """Take a guest from the pool; start one where no zygote can serve."""
        if self.level < Isolation.JAILED:
            self.cold_start = f"the sandbox is only {self.level}"
        else:
            self.cold_start = self.pool.why_cold(config)
        if self.cold_start is not None:
            return await super().launch(config, context, shared)
        size = shared.size if shared else 0
        limits = limits_of(config.policy, size if size > SMALL_CONTEXT else 0)
        handle = await self.pool.take(self.tier, limits)
        wait = self.waits_for_handshake or size > SMALL_CONTEXT
        env = config.policy.env
        return await self.greet(handle, config, context=context, shared=shared, env=env, wait=wait)

    @property
    def preloaded(self) -> str | None:
        """The tier of the zygote."""
        return None if self.cold_start else self.tier

    def adopt(self, other: PooledLauncher) -> None:
        """Take over what another launcher has found: for a clone of its guest."""
        self.level, self.python, self.packages = other.level, other.python, other.packages.again()
        self.image, self.image_digest = other.image.again(), other.image_digest


class PooledSandbox(NativePythonSandbox):
    """Same behaviour, warm start, live clones."""

    capabilities: ClassVar[frozenset[Capability]] = NativePythonSandbox.capabilities | {
        Capability.FORK
    }
    _launcher: PooledLauncher

    def __init__(self, config: SandboxConfig, pool: Pool, tier: str | None = None) -> None:
        super().__init__(config, PooledLauncher(config, pool, tier))
        self._marks: dict[str, RunningGuest] = {}

    async def run(
        self, code: str, timeout_ms: float | None = None, **options: Unpack[ExecuteOptions]
    ) -> SandboxResult:
        """Start a guest and run one cell in it; the handshake and the cell are sent together."""
        self._launcher.waits_for_handshake = self._config.state is not None
        try:
            await self.initialize(self._config.context)
            guest = self._guest
            result = await self.execute(code, timeout_ms=timeout_ms, **options)
            guest = self._guest or guest  # another one if the first was lost before it did anything
            if guest is not None:
                await guest.confirm()
        finally:
            self._launcher.waits_for_handshake = True
        return result

    async def fork(self) -> PooledSandbox:
        """Return a live clone. Threads are not cloned; open files share their position."""
        return await self.fork_with(self._config)

    async def fork_with(self, config: SandboxConfig) -> PooledSandbox:
        """Return a live clone that calls the host functions of `config`."""
        async with self._turn:
            guest = await self._clone_of(await self._ensure(), config)
            return self._sibling(guest, config)

    async def checkpoint(self) -> str:
        """Keep an idle clone to roll back to, and return its mark."""
        async with self._turn:
            if len(self._marks) >= MAX_CHECKPOINTS:
                raise ConfigError(f"{MAX_CHECKPOINTS} checkpoints are kept already: none is free")
            mark = secrets.token_hex(8)
            self._marks[mark] = await self._clone_of(await self._ensure())
        return mark

    async def rollback(self, mark: str) -> None:
        """Restore the session to the checkpoint: go on with a clone of it."""
        async with self._turn:
            self._require_open()
            if mark not in self._marks:
                kept = f"use one of {', '.join(self._marks)}" if self._marks else "none is kept"
                raise ConfigError(f"no checkpoint {mark!r:.70}: {kept}")
            if self._marks[mark].session.dead:
                raise SandboxLostError(f"checkpoint {mark!r} was ended from outside")
            guest = await self._clone_of(self._marks[mark])
            # At once: if the caller is cancelled while the old guest ends, the new one is not lost.
            (old, self._guest), self._never_used = (self._guest, guest), False
            if old is not None:
                await old.close()
            if self._tools_changed:  # perhaps since the checkpoint
                await self._tell_tools(guest)

    async def branches(self) -> tuple[str, ...]:
        """Return the marks of the checkpoints that are kept, oldest first."""
        self._require_open()
        return tuple(self._marks)

    async def _release_all(self) -> None:
        try:
            await super()._release_all()
        finally:
            marks, self._marks = self._marks, {}
            await asyncio.gather(*(kept.close() for kept in marks.values()))

    async def _clone_of(
        self, guest: RunningGuest, config: SandboxConfig | None = None
    ) -> RunningGuest:
        if why := self.cold_start:
            raise UnsupportedError(self.backend, f"fork a session that started cold: {why}")
        return await clone(guest, config or self._config, self._context, self._shared)

    def _sibling(self, guest: RunningGuest, config: SandboxConfig) -> PooledSandbox:
        """Return another sandbox like this one, around the clone."""
        twin = PooledSandbox(config, self._launcher.pool, self._launcher.tier)
        twin._launcher.adopt(self._launcher)
        twin._guest, twin._open, twin._level = guest, True, self._level
        twin._context = self._context
        twin._shared = config.context if isinstance(config.context, Context) else self._shared
        # What the guest had not been asked or told yet goes for its clone as well.
        twin._report_state_lost, twin._changed = self._report_state_lost, self._changed
        twin._tools_changed = self._tools_changed
        return twin
