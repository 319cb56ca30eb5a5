"""Starts a worker in a jail: forked from the zygote if possible, otherwise a new process."""

from __future__ import annotations

import functools
import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.backends.wasm.packages import package_folder
from atoll.backends.wasm.warm_workers import WarmWorker, WarmWorkers
from atoll.concurrency import boot
from atoll.errors import BackendUnavailableError, ConfigError, SandboxLostError, SandboxStartError
from atoll.extras import hint as install_hint
from atoll.jail.supervisor.spec import GUEST_CODE, WORK_FOLDER, Bind, JailSpec
from atoll.launch.guest_handle import limits_of
from atoll.launch.handshake import handshake
from atoll.launch.interpreter import environment, resolve
from atoll.launch.zygote_client import LOST, zygote_host_spec
from atoll.policy import MIB, Isolation, Mount

if TYPE_CHECKING:
    from atoll.backends.wasm.build import Built
    from atoll.backends.wasm.counters import Counters
    from atoll.config import SandboxConfig
    from atoll.errors import SandboxError
    from atoll.guest.shared.messages import Json
    from atoll.jail.supervisor.spec import Limits
    from atoll.launch.handshake import RunningGuest
    from atoll.packages.store import Environment
    from atoll.policy import ExecutionPolicy
    from atoll.sandbox.context import Context

IMAGE = f"{GUEST_CODE}/wasm/python.cwasm"
PACKAGES = f"{GUEST_CODE}/wasm/site-packages"
LIBRARY = f"{GUEST_CODE}/wasm/lib"
SITE_PACKAGES = f"{WORK_FOLDER}/site-packages"
NAMED_PACKAGES = "/packages"
"""The guest's folder of packages by name, if it has any."""
WORKER = "atoll.backends.wasm.worker"
FROZEN_BYTES = 32 * MIB
"""Initial size of the component's memory."""
WORKER_BYTES = 192 * MIB
"""Memory of the worker itself, in addition to the guest's."""
CONTEXT_COPIES = 3
MAX_CONTEXT = 2 << 30
RESERVED = 64 << 30
"""Address space: wasmtime reserves gigabytes for each memory."""
WORKER_PROCESSES = 16
WORKER_FILES = 32
"""The worker's own descriptors, in addition to the guest's files."""
WORKER_STACK = 64 * MIB
RETRIES = 3
HANDSHAKE_STEP = "initialize"
"""The step of a start that took too long."""
TEMPORARY = ["/tmp", "/tmp", True]  # noqa: S108 - the jail's own


async def launch(
    config: SandboxConfig, built: Built, level: Isolation, context: Any, shared: Context | None
) -> tuple[RunningGuest, Counters]:
    """Return a worker whose guest has answered the handshake, and its counters."""
    size = shared.size if shared else 0
    if size > MAX_CONTEXT:
        text = f"a context of {size:,} bytes does not fit the wasm backend: it has 4 GiB in all"
        raise ConfigError(f"{text}: use the backend native, which shares it")
    warm = level >= Isolation.JAILED and config.workspace is None and not config.policy.mounts
    if not warm:
        return await _handshake(_start(config, built, level, size), config, context, shared)
    workers = _warm_workers(built)
    for attempt in range(RETRIES):
        worker = workers.take(_limits(config.policy, size))
        try:
            guest = await _handshake(worker, config, context, shared)
        except (SandboxStartError, SandboxLostError) as exc:  # no code of the caller has run
            # A zygote that does not answer in time is replaced as well.
            workers.discard(whole=getattr(exc, "step", HANDSHAKE_STEP) in (*LOST, HANDSHAKE_STEP))
            if attempt == RETRIES - 1:
                raise _advised(exc, built) from None
        else:
            workers.refill()
            return guest
    raise AssertionError("unreachable")


def with_packages(config: SandboxConfig, environment: Environment) -> SandboxConfig:
    """Return the configuration with the packages by name as one more mount."""
    mount = Mount(source=Path(environment.site), target=NAMED_PACKAGES)
    return replace(config, policy=replace(config.policy, mounts=(*config.policy.mounts, mount)))


def _advised(exc: SandboxError, built: Built) -> SandboxError:
    """Return the error with advice to remove the component, which may be damaged."""
    if not isinstance(exc, SandboxStartError) or exc.step not in LOST:
        return exc
    hint = f"if it stays so, remove {built.folder}, and the next use builds it anew"
    return SandboxStartError(exc.step, f"{exc.reason}; {hint}")


async def _handshake(
    worker: WarmWorker, config: SandboxConfig, context: Any, shared: Context | None
) -> tuple[RunningGuest, Counters]:
    counters = worker.counters
    try:
        params = _worker_params(config, shared.size if shared else 0)
        guest = await handshake(
            worker.starting.open(),
            config,
            context,
            shared,
            env=config.policy.env,
            extra=params,
            proxied=False,
        )
    except BaseException:
        counters.close()
        raise
    return replace(guest, on_close=counters.close), counters


def _worker_params(config: SandboxConfig, context_size: int) -> Json:
    """Return the worker's parameters, in addition to the guest's own."""
    return {
        "fuel": config.policy.fuel_budget,
        "linear_memory": _linear_memory(config.policy, context_size),
        "paths": [*([NAMED_PACKAGES] if config.packages else []), SITE_PACKAGES],
        "setup": config.inject_setup,
    }


def _linear_memory(policy: ExecutionPolicy, context_size: int) -> int | None:
    if policy.memory_bytes is None:
        return None
    return policy.memory_bytes + FROZEN_BYTES + CONTEXT_COPIES * context_size


def _limits(policy: ExecutionPolicy, context_size: int) -> Limits:
    linear = _linear_memory(policy, context_size)
    return replace(
        limits_of(policy, context_size),
        memory=None if linear is None else linear + WORKER_BYTES,
        processes=WORKER_PROCESSES,
        open_files=policy.max_open_files + WORKER_FILES,
        stack=WORKER_STACK,
        reserved=RESERVED,
    )


def _start(config: SandboxConfig, built: Built, level: Isolation, context_size: int) -> WarmWorker:
    """Start a worker without the zygote: for a host folder, mounts, or without a jail."""
    return WarmWorker.start(_jail_spec(config, built, level, context_size))


def _jail_spec(
    config: SandboxConfig, built: Built, level: Isolation, context_size: int
) -> JailSpec:
    python, jailed = resolve(None), level >= Isolation.JAILED
    spec = zygote_host_spec("", python, _binds(built, config.policy))
    image, packages = (IMAGE, PACKAGES) if jailed else (built.image, str(package_folder(built)))
    library = LIBRARY if jailed else str(_wasmtime().parent)
    places = [[m.target, m.target, m.writable] for m in config.policy.mounts]
    places += [TEMPORARY] if jailed else []
    if not (config.workspace and (config.workspace / "site-packages").is_dir()):
        places.append([packages, SITE_PACKAGES, False])
    root = GUEST_CODE if jailed else spec.binds[0].source.rpartition("/")[0]
    settings = _settings(image, library, built, places)
    return JailSpec(
        jailed=jailed,
        argv=(python.path, "-I", "-B", "-X", "utf8", "-c", boot.code(WORKER), root, settings),
        env=environment(python),
        binds=spec.binds,
        workspace=str(config.workspace) if config.workspace else None,
        limits=_limits(config.policy, context_size),
    )


def _binds(built: Built, policy: ExecutionPolicy | None = None) -> list[Bind]:
    binds = [
        Bind(source=built.image, target=IMAGE),
        Bind(source=str(package_folder(built)), target=PACKAGES),
        Bind(source=str(_wasmtime()), target=f"{LIBRARY}/wasmtime"),
    ]
    for mount in policy.mounts if policy else ():
        if not mount.source.is_dir():
            raise ConfigError(f"{mount.source} is not a folder: wasm mounts only folders")
        source = str(mount.source.absolute())
        binds.append(Bind(source=source, target=mount.target, writable=mount.writable))
    return binds


@functools.lru_cache(maxsize=4)
def _warm_workers(built: Built) -> WarmWorkers:
    settings = _settings(IMAGE, LIBRARY, built, [[PACKAGES, SITE_PACKAGES, False], TEMPORARY])

    def make_spec(name: str) -> Any:
        return zygote_host_spec(
            name, resolve(None), _binds(built), role=(f"{WORKER}:prepare", settings)
        )

    return WarmWorkers(make_spec)


def _settings(image: str, library: str, built: Built, places: list[list[Any]]) -> str:
    facts = {"image": image, "library": library, "cells": built.cells, "places": places}
    return json.dumps(facts)


def _wasmtime() -> Path:
    """Return the folder of wasmtime: a worker's interpreter has no PYTHONPATH or user site."""
    result = importlib.util.find_spec("wasmtime")
    if result is None or result.origin is None:
        raise BackendUnavailableError("wasm", "wasmtime is not installed", install_hint("wasm"))
    return Path(result.origin).resolve().parent
