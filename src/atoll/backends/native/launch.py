"""Puts a guest into a jail: what the supervisor is asked for, and the first hello."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from atoll.jail.spec import GUEST_CODE, Bind, JailSpec
from atoll.launch import library
from atoll.launch.guest_handle import limits_of, start_guest
from atoll.launch.handshake import handshake
from atoll.launch.interpreter import (
    GUEST_FOLDER,
    environment,
    package_binds,
    site_code,
)
from atoll.policy import Isolation

if TYPE_CHECKING:
    from atoll.config import SandboxConfig
    from atoll.context import Context
    from atoll.launch.handshake import RunningGuest
    from atoll.launch.interpreter import Interpreter

_BOOT = """
import marshal, os, sys
root = sys.argv[1]
try:
    with open(f"{root}/guest/__pycache__/bundle.{sys.implementation.cache_tag}", "rb") as file:
        marshal.load(file)  # which files it was made of: the host has checked it
        codes = marshal.load(file)
except (OSError, ValueError, EOFError, TypeError):
    sys.path.append(root)
    from guest.__main__ import main
    sys.path.remove(root)
    main(os.getcwd())
boot = {"__name__": "boot"}
exec(marshal.loads(codes["guest.bundle"]), boot)
boot["start"](codes, root, os.getcwd())
"""
"""Start the runtime from its bundle (see guest/bundle), or module by module where there is none."""


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
    binds = [Bind(source=code, target=f"{GUEST_CODE}/guest")]
    binds += [*library.binds(), *package_binds(interpreter)]
    binds += [Bind(source=folder, target=folder) for folder in interpreter.folders]
    binds += [Bind(source=os.path.realpath(link), target=link) for link in interpreter.links]
    binds += [
        Bind(source=str(mount.source.absolute()), target=mount.target, writable=mount.writable)
        for mount in policy.mounts
    ]
    site = site_code(interpreter, jailed=jailed)
    return JailSpec(
        jailed=jailed,
        argv=(interpreter.path, "-I", "-B", "-X", "utf8", "-c", f"{site}{_BOOT}", root),
        env=environment(interpreter, jailed=jailed) | dict(policy.env),
        binds=tuple(binds),
        workspace=str(config.workspace) if config.workspace else None,
        limits=limits_of(policy, context_size),
    )
