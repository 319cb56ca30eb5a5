"""Puts a guest into a jail: what the supervisor is asked for, and the first hello."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from atoll.jail.supervisor.spec import GUEST_CODE, JailSpec
from atoll.launch import boot
from atoll.launch.guest_handle import limits_of, start_guest
from atoll.launch.handshake import handshake
from atoll.launch.interpreter import GUEST_FOLDER, environment
from atoll.policy import Isolation

if TYPE_CHECKING:
    from atoll.config import SandboxConfig
    from atoll.launch.handshake import RunningGuest
    from atoll.launch.interpreter import Interpreter
    from atoll.sandbox.context import Context


async def launch(
    config: SandboxConfig,
    interpreter: Interpreter,
    level: Isolation,
    context: Any,
    shared: Context | None,
) -> RunningGuest:
    """Start a guest; SandboxStartError if it does not come up. Leaves nothing behind then."""
    spec = make_spec(config, interpreter, level, shared.size if shared else 0)
    return await handshake(start_guest(spec), config, context, shared)


def make_spec(
    config: SandboxConfig, interpreter: Interpreter, level: Isolation, context_size: int
) -> JailSpec:
    """What the supervisor is asked for."""
    policy, jailed = config.policy, level >= Isolation.JAILED
    root = GUEST_CODE if jailed else os.path.dirname(GUEST_FOLDER)
    code = GUEST_FOLDER if jailed else root  # the importer lists the folder it finds it in
    return JailSpec(
        jailed=jailed,
        argv=boot.command(interpreter, root, jailed=jailed),
        env=environment(interpreter, jailed=jailed) | dict(policy.env),
        binds=boot.binds(policy, interpreter, code),
        workspace=str(config.workspace) if config.workspace else None,
        limits=limits_of(policy, context_size),
        root=interpreter.root,
    )
