"""Runs one program in a jail with the caller's streams, and says how it ended.

caller ──spec, descriptors, a socket──▶ supervisor ──fork──▶ pid 1: walls, then waits
   ◀──────── master of its terminal ───────────────────────────│
   ├── proxy listens in the jail, if hosts are allowed         │
   ├──────── "go" ────────────────────────────────────────────▶│──spawn──▶ the program
   ◀──────── how it ended ─────────────────────────────────────┘
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.concurrency.portal import Portal
from atoll.egress.gateway import Gateway
from atoll.errors import BackendUnavailableError, ConfigError, SandboxStartError
from atoll.jail.supervisor import client, packets
from atoll.jail.supervisor.spec import GUEST_HOME, ImageRoot, JailSpec, Limits
from atoll.launch.interpreter import IMAGE_PATH
from atoll.policy import Isolation
from atoll.programs import protected, terminal
from atoll.programs import rules as program_rules
from atoll.programs.layout import binds_for

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Sequence

    from atoll.jail.supervisor.client import Lease
    from atoll.network import NetworkUse
    from atoll.programs.rules import ProgramRules
    from atoll.types import EndReport

TIMED_OUT = 124
RESERVED = 1 << 42
"""Address space that programs such as node set aside and hardly touch."""
OPEN_FILES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEnd:
    """How a program ended."""

    exit_code: int
    """Its own; 128 and the signal's number if one ended it; 124 at the time limit."""
    signal: int | None = None
    out_of_memory: bool = False
    timed_out: bool = False
    network: NetworkUse | None = None
    """What it asked the network for, if it was allowed any."""
    created: tuple[str, ...] = ()
    """Files that it made and other programs run or obey: look at them before those do."""


def run_program(
    argv: Sequence[str], rules: ProgramRules | None = None, *, timeout_seconds: float | None = None
) -> ProgramEnd:
    """Run a program of this machine in a jail, with the streams of this process, and wait for it.

        end = atoll.run_program(["pytest", "-q"])
        print(end.exit_code)

    Without rules it may write to the current folder, and has no network.
    """
    chosen = program_rules.ProgramRules.for_folder() if rules is None else rules
    return Portal.shared().run(run(argv, chosen, seconds=timeout_seconds))


async def run(
    argv: Sequence[str], rules: ProgramRules, *, seconds: float | None = None
) -> ProgramEnd:
    """Run a program; see run_program."""
    before = _protected(rules)
    gateway = Gateway(rules.network) if rules.network else None
    used = gateway.share(rules.network) if gateway else None
    with contextlib.ExitStack() as stack:
        spec = await _spec(argv, rules, stack)
        if gateway is not None:
            spec = replace(spec, env={**gateway.environment(rules.env), **spec.env})
        try:
            end, timed_out = await _run(spec, gateway, seconds)
        except SandboxStartError:
            await _explain_host()
            raise
    created = tuple(sorted(_protected(rules) - before))
    network = used.take() if used else None
    return _ended(end, timed_out=timed_out, network=network, created=created)


async def _spec(argv: Sequence[str], rules: ProgramRules, stack: contextlib.ExitStack) -> JailSpec:
    """Return the jail of a program; what it needs is released with the stack."""
    root, env = None, rules.environment(os.environ)
    if rules.image is not None:
        from atoll.images import get_image  # noqa: PLC0415 - most programs have no image

        held = stack.enter_context(
            contextlib.closing(await asyncio.to_thread(get_image, rules.image))
        )
        root = ImageRoot(layers=tuple(map(str, held.image.layers)))
        own = (variable.partition("=") for variable in held.image.config.env)
        env = {**env, "PATH": IMAGE_PATH, **{name: value for name, _, value in own if name}}
        env.update(HOME=GUEST_HOME, **rules.env)
    return JailSpec(
        jailed=True,
        argv=(find_program(argv, rules), *argv[1:]),
        env=env,
        binds=stack.enter_context(binds_for(rules)),
        workspace=None,
        limits=_limits(rules),
        root=root,
        folder=str(rules.folder),
        attended=True,
        terminal=terminal.has_terminal(),
    )


def _protected(rules: ProgramRules) -> set[str]:
    """Return the files in the folder that other programs run or obey."""
    found = (path for path in protected.find(rules.folder) if os.path.lexists(path))
    return {str(path.relative_to(rules.folder)) for path in found}


async def _explain_host() -> None:
    """Raise BackendUnavailableError if no jail can be made on this machine.

    Asked only after a failure: to examine the host takes as long as to run a program.
    """
    from atoll.jail.measure import probe  # noqa: PLC0415

    report = await probe.host()
    if report.level < Isolation.JAILED:
        reason = f"no jail can be made here: {report.failure}"
        raise BackendUnavailableError("exec", reason, "`atoll doctor` says more.")


def find_program(argv: Sequence[str], rules: ProgramRules) -> str:
    """Return the program's path in its jail; ConfigError says what to type if it is not there."""
    if not argv:
        raise ConfigError("name a program: atoll exec CMD ...")
    name = argv[0]
    if rules.image is not None:  # pid 1 looks for it, in the image
        return name
    folders = rules.environment(os.environ).get("PATH", os.defpath).split(os.pathsep)
    places = [rules.folder / name] if "/" in name else [Path(at, name) for at in folders if at]
    # Not Path.is_file: that raises for a folder of another user.
    present = [place for place in places if os.path.isfile(place) and os.access(place, os.X_OK)]
    for place in present:  # as a shell in the jail would, which does not see all folders of PATH
        if rules.shown(place) and rules.shown(place.resolve()):
            return str(place)
    if not present:
        raise ConfigError(f"{name}: no such program")
    hidden = present[0] if not rules.shown(present[0]) else present[0].resolve()
    folder = hidden.parent.parent if hidden.parent.name == "bin" else hidden.parent
    raise ConfigError(
        f"{name} is {hidden}, which the program's jail does not show: add --read {folder}"
    )


def _limits(rules: ProgramRules) -> Limits:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return Limits(
        memory=rules.memory,
        processes=rules.processes,
        disk=rules.disk,
        file_size=None,
        open_files=OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard),
        reserved=RESERVED,
    )


async def _run(
    spec: JailSpec, gateway: Gateway | None, seconds: float | None
) -> tuple[EndReport, bool]:
    ours, theirs = packets.pair()
    with contextlib.ExitStack() as stack:
        stack.enter_context(ours)
        with theirs:
            if spec.terminal:
                given = [os.open(os.devnull, os.O_RDWR)] * 3
                stack.callback(os.close, given[0])
            else:
                given = stack.enter_context(terminal.passed_streams())
            lease = client.request(spec, [*given, theirs.fileno()])
        try:
            await lease.started
            if gateway is not None:
                gateway.listen(await lease.listener())
            if spec.terminal:
                stack.enter_context(terminal.attached(await _receive_master(ours, stack)))
            packets.send(ours, "go")
            with _signals_passed_on(lease):
                return await _wait(lease, seconds)
        finally:
            await lease.close()
            if gateway is not None:
                await gateway.close()


async def _receive_master(ours: socket.socket, stack: contextlib.ExitStack) -> int:
    message = await asyncio.to_thread(packets.receive, ours)
    if message is None:
        raise ConfigError("the jail has no terminal: use a pipe, as in `atoll exec CMD | cat`")
    stack.callback(os.close, message.fds[0])
    return message.fds[0]


async def _wait(lease: Lease, seconds: float | None) -> tuple[EndReport, bool]:
    try:
        async with asyncio.timeout(seconds):
            return await asyncio.shield(lease.ended), False
    except TimeoutError:
        lease.kill()
        return await asyncio.shield(lease.ended), True


@contextlib.contextmanager
def _signals_passed_on(lease: Lease) -> Iterator[None]:
    """Interrupt the program at SIGINT and kill its jail at SIGTERM; this process goes on."""
    loop = asyncio.get_running_loop()
    handlers = {signal.SIGINT: lease.interrupt, signal.SIGTERM: lease.kill}
    installed = []
    for number, handler in handlers.items():
        with contextlib.suppress(ValueError, RuntimeError):  # only the main thread may
            loop.add_signal_handler(number, handler)
            installed.append(number)
    try:
        yield
    finally:
        for number in installed:
            loop.remove_signal_handler(number)


def _ended(
    end: EndReport, *, timed_out: bool, network: NetworkUse | None, created: tuple[str, ...]
) -> ProgramEnd:
    code = end.exit if end.exit is not None else 128 + (end.signal or signal.SIGKILL)
    return ProgramEnd(
        exit_code=TIMED_OUT if timed_out else code,
        signal=end.signal,
        out_of_memory=end.out_of_memory,
        timed_out=timed_out,
        network=network,
        created=created,
    )
