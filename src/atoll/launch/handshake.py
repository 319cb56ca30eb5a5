"""The first request to a guest: its tools, its limits, its context."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Required, TypedDict, cast

from atoll.egress.gateway import Gateway
from atoll.errors import SandboxLostError, SandboxStartError
from atoll.guest.shared import values
from atoll.launch.processes import GuestProcesses
from atoll.sandbox import signatures
from atoll.sandbox.bridge import HostBridge
from atoll.sandbox.channel import ChannelEndedError, RemoteError
from atoll.sandbox.result_fields import end_of_process
from atoll.sandbox.session import GuestSession

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from atoll.config import LineCallback, SandboxConfig
    from atoll.egress.gateway import Share
    from atoll.errors import SandboxError
    from atoll.guest.shared.messages import ContextSource, InitializeParams, Json
    from atoll.jail.supervisor.client import Lease
    from atoll.launch.guest_handle import GuestHandle
    from atoll.network import NetworkPolicy
    from atoll.sandbox.context import Context
    from atoll.types import SandboxResult

START_SECONDS = 30
KILLED = (None, signal.SIGKILL)
"""How a guest ends that another process has killed, as its supervisor saw it or could not see."""


class CpuReading(NamedTuple):
    """The CPU time that a guest has used so far. Another guest is another object."""

    guest: object
    seconds: float


@dataclass(frozen=True, slots=True)
class RunningGuest:
    """A guest after its handshake."""

    lease: Lease
    session: GuestSession
    bridge: HostBridge
    context_shared: bool = False
    unanswered: asyncio.Future[Any] | None = None
    """The answer to a handshake that was not waited for."""
    on_close: Callable[[], None] | None = None
    """Called when the guest is closed."""
    network: Share | None = None
    """Its hold on the proxy by which it reaches the network."""
    network_env: Mapping[str, str] = field(default_factory=dict)
    """The variables by which programs find that proxy."""
    processes: GuestProcesses = field(default_factory=GuestProcesses)
    """What the host started beside it."""

    async def close(self) -> None:
        """End the guest and close all that leads to it."""
        self.session.close()
        self.bridge.close()
        for process in self.processes.known.values():
            process.close()
        if self.on_close is not None:
            self.on_close()
        try:
            await self.lease.close()
        finally:  # also if the caller is cancelled meanwhile
            if self.network is not None:
                await self.network.release()

    async def cpu_reading(self) -> CpuReading:
        """Return the CPU time of all its processes, as the host counts it."""
        counted = self.lease.usage.counted_cpu_seconds()
        if counted is None:  # no control group: the supervisor asks /proc
            counted = await self.lease.cpu_seconds()
        return CpuReading(self, counted)

    def with_network(self, result: SandboxResult, on_stderr: LineCallback | None) -> SandboxResult:
        """Return a result with what the guest asked the network for, and refusals not shown yet."""
        if self.network is None:
            return result
        use = self.network.take()
        words = use.unsaid(f"{result.stdout}{result.stderr}{result.error}")
        if on_stderr is not None:
            for line in words.splitlines():
                on_stderr(line)
        return replace(result, network=use, stderr=result.stderr + words)

    async def confirm(self) -> None:
        """Raise SandboxStartError if the handshake that was not waited for has failed."""
        if self.unanswered is not None:
            await _answer(self.lease, self.unanswered)


class HandshakeOptions(TypedDict, total=False):
    """Options of `handshake` that backends of an interpreter have."""

    context: Required[Any]
    shared: Required[Context | None]
    env: Mapping[str, str] | None
    wait: bool


async def handshake(
    handle: GuestHandle,
    config: SandboxConfig,
    context: Any,
    shared: Context | None,
    *,
    env: Mapping[str, str] | None = None,
    extra: Json | None = None,
    proxied: bool = True,
    wait: bool = True,
) -> RunningGuest:
    """Send the first request. On failure end the guest and raise SandboxStartError.

    `env` is for a guest that was started without its environment, `extra` is added by a backend.
    Without `proxied` the guest has `fetch` for its network policy, and no proxy.
    Without `wait` (for a guest that is ready) the next request follows at once: see confirm().
    """
    gateway = None
    if config.network:
        gateway = await _open_gateway(handle, config.network)
        config = gateway.with_fetch(config)
    bridge = HostBridge(config, lambda: shared.value if shared is not None else context)
    handle.channel.on_call = bridge.handle
    session = GuestSession(config, handle.lease, handle.channel, handle.output_fds)
    network = gateway.share(config.network) if gateway else None
    guest = RunningGuest(handle.lease, session, bridge, network=network)
    try:
        params = _parameters(config, context, shared, env)
        if extra is not None:
            params = cast("InitializeParams", {**params, **extra})
        if gateway is not None:
            params["network"] = gateway.guest_params(proxied=proxied)
        if gateway is not None and proxied:
            own = config.policy.env
            guest = replace(guest, network_env=gateway.environment(own))
            params["env"] = {**params.get("env", {}), **guest.network_env}
        if params == handle.applied:
            return guest
        if not wait and gateway is None:
            return replace(guest, unanswered=_request(handle, params, shared))
        first = await _send(handle, params, shared)
        if gateway is not None and proxied:  # no code of the guest's has run yet
            gateway.listen(await handle.lease.listener())
    except BaseException as exc:
        if words := session.last_words():
            exc.add_note(f"the guest's last words:\n{words}")
        await guest.close()
        raise
    return replace(guest, context_shared=bool(first.get("context_shared")))


async def _open_gateway(handle: GuestHandle, network: NetworkPolicy) -> Gateway:
    """Return what the guest reaches the network by; end the guest if there can be none."""
    try:
        return Gateway(network)
    except BaseException:
        await handle.close()
        raise


async def await_ready(handle: GuestHandle, memory: int | None) -> GuestHandle:
    """Wait for a forked guest; its zygote has already applied the default handshake."""
    try:
        await handle.lease.started
        await handle.channel.ready
    except ChannelEndedError as exc:
        raise await _lost(handle.lease, exc) from None
    applied: InitializeParams = {"tools": [], "memory_bytes": memory, "private_folder": True}
    return replace(handle, applied=applied)


def _parameters(
    config: SandboxConfig, context: Any, shared: Context | None, env: Mapping[str, str] | None
) -> InitializeParams:
    params: InitializeParams = {
        "tools": signatures.describe_all(config.tools),
        "memory_bytes": config.policy.memory_bytes,
        "private_folder": config.workspace is None,
    }
    if config.on_stdin is not None:
        params["stdin"] = True
    if config.argv is not None:
        params["argv"] = list(config.argv)
    if config.lazy_queries:
        params["lazy"] = True
    if config.explored_length is not None:
        params["agent"] = {"context_len": config.explored_length}
    if env:
        params["env"] = dict(env)
    if shared is not None:
        params["context"] = cast("ContextSource", shared.describe())
    elif context is not None:
        params["context"] = {"value": values.encode(context)}
    return params


async def _send(handle: GuestHandle, params: InitializeParams, shared: Context | None) -> Json:
    try:
        # A guest that is not ready yet reads a request without descriptors as soon as it starts.
        asked = _request(handle, params, None) if shared is None else None
        async with asyncio.timeout(START_SECONDS):
            await handle.lease.started
            await handle.channel.ready
    except TimeoutError:
        raise _late() from None
    except ChannelEndedError as exc:
        raise await _lost(handle.lease, exc) from None
    return await _answer(handle.lease, asked or _request(handle, params, shared))


def _request(
    handle: GuestHandle, params: InitializeParams, shared: Context | None
) -> asyncio.Future[Any]:
    if shared is not None:
        handle.lease.give(shared.fd)
    return handle.channel.request("initialize", params)


async def _answer(lease: Lease, asked: asyncio.Future[Any]) -> Json:
    try:
        async with asyncio.timeout(START_SECONDS):
            answer = await asked
    except TimeoutError:
        raise _late() from None
    except RemoteError as exc:
        raise SandboxStartError("guest", str(exc)) from None
    except ChannelEndedError as exc:
        raise await _lost(lease, exc) from None
    return answer if isinstance(answer, dict) else {}


def _late() -> SandboxStartError:
    return SandboxStartError("initialize", f"the guest did not answer within {START_SECONDS} s")


async def _lost(lease: Lease, exc: ChannelEndedError) -> SandboxError:
    """Return why the guest has ended; raise the supervisor's reason if it has one."""
    report = await lease.end_report()
    if report.exit is None and report.signal in KILLED and not report.out_of_memory:
        return SandboxLostError(f"{end_of_process(report)} before anything ran in it: try again")
    return SandboxStartError("guest", f"{exc}; {end_of_process(report)}")
