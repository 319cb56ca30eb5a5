"""The first words to a guest: what it may call, what it may use, its context."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from atoll import signatures
from atoll.bridge import HostBridge
from atoll.channel import ChannelEndedError, RemoteError
from atoll.errors import SandboxStartError
from atoll.guest import values
from atoll.session import GuestSession

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from atoll.config import REPLConfig
    from atoll.context import Context
    from atoll.jail.client import Lease
    from atoll.launch.line import Line

START_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Launched:
    """A guest that has said hello."""

    lease: Lease
    session: GuestSession
    bridge: HostBridge
    context_shared: bool = False
    on_close: Callable[[], None] | None = None
    """What else there is to let go of."""

    async def close(self) -> None:
        """End the guest, and let go of all that leads to it."""
        self.session.close()
        self.bridge.close()
        if self.on_close is not None:
            self.on_close()
        await self.lease.close()


async def greet(
    line: Line,
    config: REPLConfig,
    context: Any,
    shared: Context | None,
    *,
    env: Mapping[str, str] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Launched:
    """Speak the first words; SandboxStartError if there is no answer, and nothing is left then.

    `env` is for a guest that was not started with its environment, `extra` what a backend adds.
    """
    bridge = HostBridge(config, lambda: shared.value if shared is not None else context)
    line.channel.on_call = bridge.handle
    session = GuestSession(config, line.lease, line.channel, line.output_fds)
    guest = Launched(line.lease, session, bridge)
    try:
        params = {**_first_words(config, context, shared, env), **(extra or {})}
        first = {} if params == line.said else await _hello(line, params, shared)
    except BaseException as exc:
        if words := session.last_words():
            exc.add_note(f"the guest's last words:\n{words}")
        await guest.close()
        raise
    return replace(guest, context_shared=bool(first.get("context_shared")))


async def await_ready(line: Line, memory: int | None) -> Line:
    """Wait for a guest of a zygote, which needs no greeting if it is used as most are."""
    try:
        await line.lease.started
        await line.channel.ready
    except ChannelEndedError as exc:
        raise await _lost(line, exc) from None
    said: dict[str, Any] = {"tools": [], "memory_bytes": memory, "private_folder": True}
    return replace(line, said=said)


def _first_words(
    config: REPLConfig, context: Any, shared: Context | None, env: Mapping[str, str] | None
) -> dict[str, Any]:
    params: dict[str, Any] = {
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
        params["context"] = shared.describe()
    elif context is not None:
        params["context"] = {"value": values.encode(context)}
    return params


async def _hello(line: Line, params: dict[str, Any], shared: Context | None) -> dict[str, Any]:
    try:
        if shared is None:  # the guest finds the request as soon as it is there
            asked = line.channel.request("initialize", params)
        await _ready(line)
        async with asyncio.timeout(START_SECONDS):
            if shared is not None:
                line.lease.give(shared.fd)
                asked = line.channel.request("initialize", params)
            answer = await asked
    except TimeoutError:
        raise _late() from None
    except RemoteError as exc:
        raise SandboxStartError("guest", str(exc)) from None
    except ChannelEndedError as exc:
        raise await _lost(line, exc) from None
    return answer if isinstance(answer, dict) else {}


async def _ready(line: Line) -> None:
    try:
        async with asyncio.timeout(START_SECONDS):
            await line.lease.started
            await line.channel.ready
    except TimeoutError:
        raise _late() from None
    except ChannelEndedError as exc:
        raise await _lost(line, exc) from None


def _late() -> SandboxStartError:
    return SandboxStartError("initialize", f"the guest did not answer within {START_SECONDS} s")


async def _lost(line: Line, exc: ChannelEndedError) -> SandboxStartError:
    """The reason why a guest has gone; the warden may know better, and this raises it."""
    report = await asyncio.shield(line.lease.ended)
    return SandboxStartError("guest", f"{exc}; {report}")
