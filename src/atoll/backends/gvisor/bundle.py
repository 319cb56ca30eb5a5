"""The OCI configuration of a guest's container, and the jail around runsc.

SECURITY: the configuration is data, encoded as JSON only here. It names paths in the jail of runsc,
never paths of the host, and has no annotations, hooks or devices.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from atoll.jail.supervisor.spec import (
    GUEST_CODE,
    SHOWN_FOLDERS,
    WORK_FOLDER,
    Bind,
    JailSpec,
    Limits,
)
from atoll.jail.walls.container import GUEST_ROOT, OWN_FOLDER
from atoll.jail.walls.private_folders import PRIVATE_FOLDERS
from atoll.jail.walls.steps import HOST_NAME
from atoll.launch import boot
from atoll.launch.interpreter import environment
from atoll.policy import MIB

if TYPE_CHECKING:
    from atoll.backends.gvisor.runsc import Runsc
    from atoll.config import SandboxConfig
    from atoll.guest.shared.messages import Json
    from atoll.launch.interpreter import Interpreter
    from atoll.policy import ExecutionPolicy

RUNSC = f"{GUEST_CODE}/runsc"
NAME = "guest"
STEP = 256 * MIB
"""Address space for a context is rounded up to steps, so that a parked container fits many."""
RUNTIME_MEMORY = 64 * MIB
"""Memory of gVisor's kernel, its file server and runsc, in addition to the guest's."""
RUNTIME_PROCESSES = 2
"""Processes besides those of guest code: the container's init and the guest; a relay to a network
is extra. The relay of ports counts towards the guest's own limit, and only while it runs."""
RUNTIME_THREADS = 256
THREADS_PER_PROCESS = 4
"""Host threads for one process of the guest; gVisor's kernel enforces the limit for guest code."""
OPEN_FILES = 1 << 16
MAPPED = 4 << 30
"""Address space for libraries and what they reserve."""
RESERVED = 1 << 46
"""Address space that gVisor reserves."""
STACK = 8 * MIB
SHM_PART = 4
NAMESPACES = ("pid", "ipc", "uts", "mount", "network")


def make_spec(
    config: SandboxConfig, interpreter: Interpreter, runsc: Runsc, platform: str, context_size: int
) -> JailSpec:
    """Return the specification of the jail for the supervisor."""
    policy, context_size = config.policy, _in_steps(context_size)
    command = boot.command(interpreter, GUEST_CODE, "entry.container")
    env = environment(interpreter) | dict(policy.env)
    return JailSpec(
        jailed=True,
        argv=runsc.command(GUEST_ROOT + RUNSC, platform, "run", f"--bundle={OWN_FOLDER}", NAME),
        env={},
        binds=(
            *boot.binds(interpreter),
            *boot.mount_binds(policy),
            Bind(source=runsc.path, target=RUNSC),
        ),
        workspace=str(config.workspace) if config.workspace else None,
        limits=limits_outside(policy, context_size),
        root=interpreter.root,
        container=json.dumps(
            configuration(policy, command, env, context_size, network=config.network is not None)
        ),
    )


def configuration(
    policy: ExecutionPolicy,
    command: tuple[str, ...],
    env: dict[str, str],
    context_size: int,
    *,
    network: bool = False,
) -> Json:
    """Return the OCI configuration."""
    limits = _limits_inside(policy, context_size, RUNTIME_PROCESSES + network)
    return {
        "ociVersion": "1.0.0",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": list(command),
            "env": [f"{name}={value}" for name, value in env.items()],
            "cwd": WORK_FOLDER,
            "noNewPrivileges": True,
            "rlimits": [
                {"type": f"RLIMIT_{name}", "soft": value, "hard": value}
                for name, value in limits.items()
            ],
        },
        # Mounts of the jail are already read-only, and runsc may not remount those that another
        # user namespace made.
        "root": {"path": GUEST_ROOT, "readonly": False},
        "hostname": HOST_NAME,
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            _shared_memory(policy.disk_bytes),
            *(_shared(folder) for folder in SHOWN_FOLDERS),
            *(_shared(mount.target) for mount in policy.mounts),
        ],
        "linux": {"namespaces": [{"type": kind} for kind in NAMESPACES]},
    }


def _in_steps(context_size: int) -> int:
    return max(1, -(-context_size // STEP)) * STEP


def _shared(folder: str) -> Json:
    """Return the mount of a folder that the host may change: gVisor must not cache it."""
    return {
        "destination": folder,
        "type": "bind",
        "source": GUEST_ROOT + folder,
        "options": ["rbind", "rw"],
    }


def _shared_memory(disk: int | None) -> Json:
    """Return gVisor's own /dev/shm: processes cannot share semaphores in a folder of the host.

    It gets a part of the disk limit; the other folders, which are one file system, get the rest.
    """
    return {
        "destination": PRIVATE_FOLDERS["shm"],
        "type": "tmpfs",
        "source": "tmpfs",
        "options": ["mode=1777", *([] if disk is None else [f"size={disk // SHM_PART}"])],
    }


def _limits_inside(policy: ExecutionPolicy, context_size: int, runtime: int) -> dict[str, int]:
    """Return the limits that gVisor's kernel enforces for guest code."""
    limits = {"CORE": 0, "STACK": STACK, "NOFILE": policy.max_open_files}
    if policy.file_size_bytes is not None:
        limits["FSIZE"] = policy.file_size_bytes
    if policy.max_processes is not None:
        limits["NPROC"] = policy.max_processes + runtime
    if policy.memory_bytes is not None:
        limits["AS"] = limits["DATA"] = policy.memory_bytes + context_size + MAPPED
    return limits


def limits_outside(policy: ExecutionPolicy, context_size: int) -> Limits:
    """Return the limits of gVisor itself: those of the guest and its own overhead."""
    memory, most, disk = policy.memory_bytes, policy.max_processes, policy.disk_bytes
    return Limits(
        memory=None if memory is None else memory + RUNTIME_MEMORY,
        processes=None if most is None else RUNTIME_THREADS + THREADS_PER_PROCESS * most,
        disk=None if disk is None else disk - disk // SHM_PART,
        file_size=None,  # gVisor keeps the guest's memory in one large file
        open_files=OPEN_FILES,
        context=context_size,
        reserved=RESERVED,
    )
