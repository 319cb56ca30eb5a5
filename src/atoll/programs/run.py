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
import errno
import os
import resource
import signal
import tempfile
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from atoll.concurrency.portal import Portal
from atoll.egress.gateway import Gateway
from atoll.errors import BackendUnavailableError, ConfigError, SandboxStartError
from atoll.jail.supervisor import client, packets
from atoll.jail.supervisor.spec import GUEST_HOME, Bind, ImageRoot, JailSpec, Limits, Watch
from atoll.launch.interpreter import IMAGE_PATH
from atoll.policy import Isolation
from atoll.programs import protected, terminal
from atoll.programs import rules as program_rules
from atoll.programs.find import NOT_EXECUTABLE, NOT_FOUND, NoProgramError, find_program
from atoll.programs.layout import binds_for
from atoll.programs.refusals import Watcher

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Sequence

    from atoll.jail.supervisor.client import Lease
    from atoll.network import NetworkUse
    from atoll.programs.refusals import RefusedFile
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
    refused_files: tuple[RefusedFile, ...] = ()
    """Files that rules kept it from, as far as `ProgramRules.watch` says."""


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
    gateway = Gateway(rules.network, masks=rules.masks) if rules.network else None
    used = gateway.share(rules.network) if gateway else None
    with contextlib.ExitStack() as stack:
        spec = await _spec(argv, rules, stack)
        if gateway is not None:
            spec = _with_gateway(spec, rules, gateway, stack)
        attendant = _Attendant(spec, rules, gateway)
        try:
            end, timed_out = await attendant.run(seconds)
        except SandboxStartError as exc:
            await _explain_start(exc)
            raise
    return ProgramEnd(
        exit_code=TIMED_OUT if timed_out else _exit_code(end),
        signal=end.signal,
        out_of_memory=end.out_of_memory,
        timed_out=timed_out,
        network=used.take() if used else None,
        created=tuple(sorted(_protected(rules) - before)),
        refused_files=attendant.refused,
    )


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
        unix_sockets=rules.unix_sockets,
        watch=rules.watch,
    )


def _with_gateway(
    spec: JailSpec, rules: ProgramRules, gateway: Gateway, stack: contextlib.ExitStack
) -> JailSpec:
    """Return the jail with the variables that lead to the proxy, and its certificate."""
    env = {**gateway.environment(rules.env), **spec.env}
    params = gateway.guest_params()
    if "ca" not in params:
        return replace(spec, env=env)
    file = tempfile.NamedTemporaryFile("w", suffix=".pem")  # noqa: SIM115
    stack.enter_context(file)
    file.write(params["ca"])
    file.flush()
    os.fchmod(file.fileno(), 0o644)
    bind = Bind(source=file.name, target=params["ca_file"])
    return replace(spec, env=env, binds=(*spec.binds, bind))


def _protected(rules: ProgramRules) -> set[str]:
    """Return the files in the folder that other programs run or obey."""
    found = (path for path in protected.find(rules.folder) if os.path.lexists(path))
    return {str(path.relative_to(rules.folder)) for path in found}


async def _explain_start(failure: SandboxStartError) -> None:
    """Raise an error that says more: about the program, or that no jail can be made here.

    Asked only after a failure: to examine the host takes as long as to run a program.
    """
    if failure.step.startswith("execute "):
        missing = failure.reason == os.strerror(errno.ENOENT)
        name, code = failure.step.partition(" ")[2], NOT_FOUND if missing else NOT_EXECUTABLE
        raise NoProgramError(f"{name} cannot be started: {failure.reason}", code)
    from atoll.jail.measure import probe  # noqa: PLC0415

    report = await probe.host()
    if report.level < Isolation.JAILED:
        reason = f"no jail can be made here: {report.failure}"
        raise BackendUnavailableError("exec", reason, "`atoll doctor` says more.")


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


class _Attendant:
    """Runs a jail: connects its streams or terminal, its proxy and its notifications."""

    def __init__(self, spec: JailSpec, rules: ProgramRules, gateway: Gateway | None) -> None:
        self._spec, self._rules, self._gateway = spec, rules, gateway
        self.refused: tuple[RefusedFile, ...] = ()

    async def run(self, seconds: float | None) -> tuple[EndReport, bool]:
        """Run the program; return how it ended, and whether at the time limit."""
        ours, theirs = packets.pair()
        with contextlib.ExitStack() as stack:
            stack.enter_context(ours)
            with theirs:
                given = self._streams(stack)
                lease = client.request(self._spec, [*given, theirs.fileno()])
            try:
                await lease.started
                if self._gateway is not None:
                    self._gateway.listen(await lease.listener())
                await self._attend(ours, stack)
                packets.send(ours, "go")
                with _signals_passed_on(lease):
                    return await _wait(lease, seconds)
            finally:
                await lease.close()
                if self._gateway is not None:
                    await self._gateway.close()

    def _streams(self, stack: contextlib.ExitStack) -> list[int]:
        if not self._spec.terminal:
            return stack.enter_context(terminal.passed_streams())
        null = os.open(os.devnull, os.O_RDWR)
        stack.callback(os.close, null)
        return [null] * 3

    async def _attend(self, ours: socket.socket, stack: contextlib.ExitStack) -> None:
        """Take over what pid 1 opened: the master of the terminal, the listener of calls."""
        watched = self._spec.watch is not Watch.NOTHING
        if not (watched or self._spec.terminal):
            return
        message = await asyncio.to_thread(packets.receive, ours)
        if message is None:
            raise ConfigError("the jail has no terminal: use a pipe, as in `atoll exec CMD | cat`")
        if watched:
            watcher = Watcher(self._rules, self._spec.argv, message.fds.pop())
            stack.callback(self._close_watcher, watcher)
        for master in message.fds:
            stack.callback(os.close, master)
            stack.enter_context(terminal.attached(master))

    def _close_watcher(self, watcher: Watcher) -> None:
        watcher.close()
        self.refused = tuple(watcher.refused)


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


def _exit_code(end: EndReport) -> int:
    return end.exit if end.exit is not None else 128 + (end.signal or signal.SIGKILL)
