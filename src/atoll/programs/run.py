"""Runs one program in a jail with the caller's streams, and says how it ended.

caller ──spec, descriptors, a socket──▶ supervisor ──fork──▶ pid 1: walls, then waits
   ◀──────── master of its terminal ───────────────────────────│
   ├── proxy listens in the jail, if hosts are allowed         │
   ├──────── "go" ────────────────────────────────────────────▶│──spawn──▶ the program
   ◀──────── how it ended ─────────────────────────────────────┘
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import tempfile
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from atoll.errors import BackendUnavailableError, SandboxStartError
from atoll.jail.supervisor.spec import GUEST_HOME, Bind, ImageRoot, JailSpec, Limits
from atoll.programs import protected, terminal
from atoll.programs.attend import Attendant
from atoll.programs.find import NOT_EXECUTABLE, NOT_FOUND, NoProgramError, find_program
from atoll.programs.layout import binds_for
from atoll.programs.rules import ProgramRules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.egress.gateway import Gateway
    from atoll.network import NetworkUse
    from atoll.programs.refusals import RefusedFile

# Most programs have neither a network nor an image: what these need is imported on first use.
# ruff: noqa: PLC0415

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
    chosen = ProgramRules.for_folder() if rules is None else rules
    before = _protected(chosen)
    gateway = _gateway(chosen)
    used = gateway.share(chosen.network) if gateway else None
    with contextlib.ExitStack() as stack:
        spec = _spec(argv, chosen, stack)
        if gateway is not None:
            spec = _with_gateway(spec, chosen, gateway, stack)
        attendant = Attendant(spec, chosen, gateway)
        try:
            end = attendant.run(timeout_seconds)
        except SandboxStartError as exc:
            _explain_start(exc)
            raise
    return ProgramEnd(
        exit_code=TIMED_OUT if end.timed_out else end.code,
        signal=end.signal,
        out_of_memory=end.out_of_memory,
        timed_out=end.timed_out,
        network=used.take() if used else None,
        created=tuple(sorted(_protected(chosen) - before)),
        refused_files=attendant.refused,
    )


def _spec(argv: Sequence[str], rules: ProgramRules, stack: contextlib.ExitStack) -> JailSpec:
    """Return the jail of a program; what it needs is released with the stack."""
    root, env, folder = None, rules.environment(os.environ), str(rules.folder)
    if rules.image is not None:
        from atoll.images import get_image
        from atoll.images.users import IMAGE, find_user
        from atoll.launch.interpreter import IMAGE_PATH

        held = stack.enter_context(contextlib.closing(get_image(rules.image)))
        config = held.image.config
        root = ImageRoot(layers=tuple(map(str, held.image.layers)))
        if rules.user is not None:
            root = replace(root, user=find_user(held.image, rules.user))
        if rules.workdir is not None:
            folder = (config.workdir or "/") if rules.workdir == IMAGE else rules.workdir
            env["PWD"] = folder
        if rules.entrypoint:
            argv = (*config.entrypoint, *(argv or config.command))
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
        folder=folder,
        attended=True,
        terminal=terminal.has_terminal(),
        unix_sockets=rules.unix_sockets,
        watch=rules.watch,
    )


def _gateway(rules: ProgramRules) -> Gateway | None:
    if rules.network is None:
        return None
    from atoll.egress.gateway import Gateway

    return Gateway(rules.network, masks=rules.masks)


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


def _explain_start(failure: SandboxStartError) -> None:
    """Raise an error that says more: about the program, or that no jail can be made here.

    Asked only after a failure: to examine the host takes as long as to run a program.
    """
    if failure.step.startswith("execute "):
        missing = failure.reason == os.strerror(errno.ENOENT)
        name, code = failure.step.partition(" ")[2], NOT_FOUND if missing else NOT_EXECUTABLE
        raise NoProgramError(f"{name} cannot be started: {failure.reason}", code)
    from atoll.concurrency.portal import Portal
    from atoll.jail.measure import probe
    from atoll.policy import Isolation

    report = Portal.shared().run(probe.host())
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
