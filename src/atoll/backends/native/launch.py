"""Puts a guest into a jail: the spec, the pipes, the request to the warden, the first hello."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from atoll.backends.native import library
from atoll.backends.native.interpreter import GUEST_FOLDER
from atoll.bridge import HostBridge
from atoll.channel import ChannelEndedError, HostChannel, RemoteError
from atoll.errors import SandboxStartError
from atoll.guest import values
from atoll.jail.client import warden
from atoll.jail.spec import GUEST_CODE, GUEST_HOME, Bind, JailSpec, Limits
from atoll.policy import Isolation
from atoll.session import GuestSession

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from atoll.backends.native.interpreter import Interpreter
    from atoll.config import REPLConfig
    from atoll.context import Context
    from atoll.jail.client import Lease
    from atoll.jail.spec import Spec
    from atoll.policy import ExecutionPolicy

START_SECONDS = 30
PIPE_SIZE = 1 << 20
_BOOT = (
    "import sys, os; sys.path.append(sys.argv[1]); "
    "from guest.__main__ import main; sys.path.remove(sys.argv[1]); main(os.getcwd())"
)
_PATH = "/usr/local/bin:/usr/bin:/bin"


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


@dataclass(frozen=True, slots=True)
class Launched:
    """A guest that has said hello."""

    lease: Lease
    session: GuestSession
    bridge: HostBridge
    context_shared: bool = False

    async def close(self) -> None:
        """End the guest, and let go of all that leads to it."""
        self.session.close()
        self.bridge.close()
        await self.lease.close()


async def launch(
    config: REPLConfig,
    interpreter: Interpreter,
    level: Isolation,
    context: Any,
    shared: Context | None,
) -> Launched:
    """Start a guest; SandboxStartError if it does not come up. Leaves nothing behind then."""
    spec = make_spec(config, interpreter, level, shared.size if shared else 0)
    return await greet(open_line(spec), config, context, shared)


def open_line(spec: Spec) -> Line:
    """Ask the warden for a guest, with everything that it will be spoken to by."""
    with pipes(4) as (requests, answers, output, errors):
        given = [requests[0], answers[1], errors[1], output[1]]
        lease = warden.request(spec, given)
        for fd in given:
            os.close(fd)
        channel = HostChannel(answers[0], requests[1])
    return Line(lease, channel, [output[0], errors[0]])


async def greet(
    line: Line,
    config: REPLConfig,
    context: Any,
    shared: Context | None,
    env: Mapping[str, str] | None = None,
) -> Launched:
    """Speak the first words; SandboxStartError if there is no answer, and nothing is left then.

    `env` is for a guest that was not started with its environment.
    """
    bridge = HostBridge(config, lambda: shared.value if shared is not None else context)
    line.channel.on_call = bridge.handle
    session = GuestSession(config, line.lease, line.channel, line.output_fds)
    guest = Launched(line.lease, session, bridge)
    try:
        params = _first_words(config, context, shared, env)
        first = {} if params == line.said else await _hello(line, params, shared)
    except BaseException as exc:
        if words := session.last_words():
            exc.add_note(f"the guest's last words:\n{words}")
        await guest.close()
        raise
    return replace(guest, context_shared=bool(first.get("context_shared")))


def make_spec(
    config: REPLConfig, interpreter: Interpreter, level: Isolation, context_size: int
) -> JailSpec:
    """What the warden is asked for."""
    policy, jailed = config.policy, level >= Isolation.JAILED
    root = GUEST_CODE if jailed else os.path.dirname(GUEST_FOLDER)
    code = GUEST_FOLDER if jailed else root  # the importer lists the folder it finds it in
    binds = [Bind(source=code, target=f"{GUEST_CODE}/guest")]
    binds += library.binds()
    binds += [Bind(source=folder, target=folder) for folder in interpreter.folders]
    binds += [Bind(source=os.path.realpath(link), target=link) for link in interpreter.links]
    binds += [
        Bind(source=str(mount.source.absolute()), target=mount.target, writable=mount.writable)
        for mount in policy.mounts
    ]
    return JailSpec(
        jailed=jailed,
        argv=(interpreter.path, "-I", "-B", "-X", "utf8", "-c", _BOOT, root),
        env=environment(interpreter) | dict(policy.env),
        binds=tuple(binds),
        workspace=str(config.workspace) if config.workspace else None,
        limits=limits_of(policy, context_size),
    )


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


def environment(interpreter: Interpreter) -> dict[str, str]:
    """All that a guest gets of an environment: nothing is inherited."""
    return {
        "PATH": f"{os.path.dirname(interpreter.path)}:{_PATH}",
        "HOME": GUEST_HOME,
        "LANG": "C.UTF-8",
        "MPLBACKEND": "Agg",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }


async def greet_early(line: Line, memory: int | None) -> Line:
    """Say what most callers will have said, so that it need not be said when one comes."""
    params: dict[str, Any] = {"tools": [], "memory_bytes": memory, "private_folder": True}
    await _hello(line, params, None)
    return replace(line, said=params)


def _first_words(
    config: REPLConfig, context: Any, shared: Context | None, env: Mapping[str, str] | None
) -> dict[str, Any]:
    params: dict[str, Any] = {
        "tools": sorted(config.tools),
        "memory_bytes": config.policy.memory_bytes,
        "private_folder": config.workspace is None,
    }
    if env:
        params["env"] = dict(env)
    if shared is not None:
        params["context"] = shared.describe()
    elif context is not None:
        params["context"] = {"value": values.encode(context)}
    return params


async def _hello(line: Line, params: dict[str, Any], shared: Context | None) -> dict[str, Any]:
    try:
        async with asyncio.timeout(START_SECONDS):
            await line.lease.started
            await line.channel.ready
            if shared is not None:
                line.lease.give(shared.fd)
            answer = await line.channel.request("initialize", params)
    except TimeoutError:
        reason = f"the guest did not answer within {START_SECONDS} s"
        raise SandboxStartError("initialize", reason) from None
    except (ChannelEndedError, RemoteError) as exc:
        report = await asyncio.shield(line.lease.ended)  # raises what the warden knows better
        raise SandboxStartError("guest", f"{exc}; {report}") from None
    return answer if isinstance(answer, dict) else {}


@contextlib.contextmanager
def pipes(count: int) -> Iterator[list[tuple[int, int]]]:
    """Pipes that are closed again if the block fails."""
    pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(count)]
    try:
        for _, write in pipes:
            with contextlib.suppress(PermissionError):  # the user's pipes are over their limit
                fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        yield pipes
    except BaseException:
        for pipe in pipes:
            for fd in pipe:
                with contextlib.suppress(OSError):
                    os.close(fd)
        raise
