"""Starts Deno with the driver, in a jail if possible, from the memory image."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.backends.pyodide import deno
from atoll.backends.pyodide.deno import SCRIPTS
from atoll.jail.supervisor.spec import GUEST_CODE, Bind, JailSpec, Limits
from atoll.launch import library
from atoll.launch.guest_handle import request_guest
from atoll.launch.interpreter import GUEST_FOLDER
from atoll.launch.parked import ParkedProcesses
from atoll.policy import MIB, ExecutionPolicy, Isolation

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from atoll.backends.pyodide.deno import Deno
    from atoll.backends.pyodide.distribution import Distribution
    from atoll.config import SandboxConfig
    from atoll.guest.shared.messages import Json

PAGE = 1 << 16
MAX_PAGES = 65_536
BASE = 64 * MIB
"""Wasm memory of Python before any guest code runs, and to start a cell."""
RUNTIME = 448 * MIB
"""Memory of Deno, V8, compiled code and the image, in addition to wasm memory."""
STEP = 64 * MIB
STACK_KIB = 3900
"""Kilobytes of V8's stack; a worker's thread has little more."""
RESERVED = 1 << 46
"""Address space that V8 reserves, so that no index can leave a wasm memory."""
PROCESSES = 128
OPEN_FILES = 1024
DISK = 64 * MIB
"""Disk of Deno itself in a jail; the guest's files are in memory and counted there."""


parked = ParkedProcesses(request_guest, most=1)
"""The Deno process that the next sandbox takes: it needs seconds to start."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The files that a guest is started from."""

    runner: Deno
    pyodide: Distribution
    image: Path | None
    """None: Python starts without an image, which takes seconds."""
    wheels: tuple[Path, ...]

    @property
    def gone(self) -> bool:
        """Whether files were removed from the cache, or other wheels were installed."""
        kept = (self.pyodide.folder, *self.wheels, *([self.image] if self.image else []))
        return not all(path.exists() for path in kept)


def make_spec(
    config: SandboxConfig, parts: Parts, level: Isolation, context_bytes: int
) -> JailSpec:
    """Return the supervisor's specification of a guest."""
    pages = _pages(config.policy.memory_bytes, context_bytes)
    flags = [f"--wasm-max-mem-pages={pages}", f"--stack-size={STACK_KIB}"]
    limits = _limits(config.policy, context_bytes)
    settings = functools.partial(_settings, config)
    return _spec(parts, level, limits, "driver.mjs", settings, *flags)


def image_spec(parts: Parts, level: Isolation, warm_up: str) -> JailSpec:
    """Return the specification to build a memory image: the code at a URL may be hostile."""
    limits = _limits(ExecutionPolicy(), 0)
    return _spec(
        parts, level, limits, "snapshot.mjs", lambda seen: {**_assets(seen), "warmUp": warm_up}
    )


def _spec(
    parts: Parts,
    level: Isolation,
    limits: Limits,
    script: str,
    settings: Callable[[dict[str, str]], Json],
    *flags: str,
) -> JailSpec:
    jailed = level >= Isolation.JAILED
    places = _places(parts)
    seen = {name: f"{GUEST_CODE}/{name}" if jailed else source for name, source in places.items()}
    reads = [path for name, path in seen.items() if name != "bin/deno"]
    arguments = deno.arguments(f"{seen['js']}/{script}", reads=reads, v8=[*flags])
    return JailSpec(
        jailed=jailed,
        argv=(seen["bin/deno"], *arguments, json.dumps(settings(seen))),
        env={"DENO_DIR": ".deno", "NO_COLOR": "1"},
        binds=tuple(
            Bind(source=source, target=f"{GUEST_CODE}/{name}") for name, source in places.items()
        ),
        workspace=None,
        limits=limits,
    )


def _places(parts: Parts) -> dict[str, str]:
    places = {
        "bin/deno": parts.runner.path,
        "js": SCRIPTS,
        "pyodide": str(parts.pyodide.folder),
        "guest": GUEST_FOLDER,
    }
    if parts.image is not None:
        places["image"] = str(parts.image)
    for bind in library.binds():
        places["lib/cloudpickle"] = bind.source
    places |= {f"wheels/{wheel.name}": str(wheel) for wheel in parts.wheels}
    return places


def _settings(config: SandboxConfig, seen: dict[str, str]) -> Json:
    policy = config.policy
    return {
        **_assets(seen),
        "useWorker": config.use_worker,
        "limits": {
            "disk": policy.disk_bytes,
            "fileSize": policy.file_size_bytes,
            "openFiles": policy.max_open_files,
        },
    }


def _assets(seen: dict[str, str]) -> Json:
    """Return the files that are read before anything runs; see js/assets.mjs."""
    return {
        "pyodide": seen["pyodide"],
        "snapshot": seen.get("image"),
        "folders": [
            {"source": seen[name], "target": f"{GUEST_CODE}/{name}"}
            for name in ("guest", "lib/cloudpickle")
            if name in seen
        ],
        "wheels": [path for name, path in seen.items() if name.startswith("wheels/")],
    }


def _pages(memory: int | None, context_bytes: int) -> int:
    """Return how far wasm memory may grow; in steps, so a parked process fits many contexts."""
    if memory is None:
        return MAX_PAGES
    room = -(-2 * context_bytes // STEP) * STEP
    return min(MAX_PAGES, (BASE + memory + room) // PAGE)


def _limits(policy: ExecutionPolicy, context_bytes: int) -> Limits:
    """Return the kernel's limits for all of Deno, including the guest's memory."""
    room = -(-4 * context_bytes // STEP) * STEP
    memory = policy.memory_bytes
    files = policy.disk_bytes or 0
    return Limits(
        memory=None if memory is None else RUNTIME + memory + files + room,
        processes=PROCESSES,
        disk=DISK,
        file_size=DISK,
        open_files=OPEN_FILES,
        reserved=RESERVED,
    )
